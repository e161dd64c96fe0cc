"""Jobs, gangs and quotas: objects in etcd, decided by one leader, run by node runners."""
