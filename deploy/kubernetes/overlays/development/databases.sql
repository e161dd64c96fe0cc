-- Runs once, when the database cluster is made. No passwords: see pg_hba.conf.
CREATE ROLE gateway LOGIN;
CREATE ROLE deployer LOGIN;
CREATE ROLE tuner LOGIN;
CREATE DATABASE gateway OWNER gateway;
CREATE DATABASE deployer OWNER deployer;
CREATE DATABASE tuner OWNER tuner;
REVOKE CONNECT ON DATABASE gateway, deployer, tuner FROM PUBLIC;
