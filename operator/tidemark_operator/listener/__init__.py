"""Control listener of the controller: requests of brokers, and commands to brokers."""
