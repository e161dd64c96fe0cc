"""The stores behind `services.deployer.store.Store`."""
