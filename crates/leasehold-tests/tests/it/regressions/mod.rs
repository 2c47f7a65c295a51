//! One test per bug that was found and fixed.

mod commands;
mod composed;
mod connections;
mod dialling;
mod ending;
mod forks;
mod holding;
mod inspection;
mod lease;
mod network;
mod publish;
mod quorum;
mod redisson;
mod replicas;
mod runtimes;
mod silence;
mod tokens;
mod waiting;
mod wire;
