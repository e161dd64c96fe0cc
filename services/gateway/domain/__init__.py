"""What the gateway decides, free of transport and storage: who calls, where a call goes, whom to hint."""
