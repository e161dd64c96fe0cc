"""What tests of the agent, ours and others', need: a cloud that can lie and stall, tasks, an app."""
