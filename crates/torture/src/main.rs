//! Fault-injection runs against real servers.
//!
//! `torture PLAN FOLDER` starts servers, a faulty network and workers, injects
//! faults, checks the workers' histories, and writes a page and the figures to
//! the folder. It exits with status 1 if a promise is broken. `TORTURE_SECONDS`
//! and `TORTURE_SEED` override the plan.
//!
//! A plan is a file in `plans/`. A [`worker`] is a process that acquires locks,
//! the [`nemesis`] injects faults into the [`environment`], and [`check`]
//! contains the checkers. [`steal`] detects when the hypervisor stalls the
//! machine.

mod artifacts;
mod attempt;
mod check;
mod connection_counter;
mod cpu_time;
mod environment;
mod fault_log;
mod fenced_store;
mod history;
mod nemesis;
mod plan;
mod report;
mod steal;
mod worker;

use std::path::Path;
use std::process::ExitCode;

use check::{
    connections, exclusion, hand_over, leaks, linearizability, order, service, store, tokens,
    waiting,
};
use connection_counter::ConnectionCounter;
use environment::Environment;
use plan::Plan;
use report::Run;
use steal::StealMonitor;
use testkit::Server;
use worker::Job;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let after = |word: &str| words.split_first().filter(|(first, _)| *first == word);
    if let Some((_, rest)) = after("worker") {
        worker::work(job(rest).expect("the arguments of a worker"));
        return ExitCode::SUCCESS;
    }
    if let Some((_, rest)) = after("wrapped") {
        return worker::wrapped(rest).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let [plan, folder] = words.as_slice() else {
        eprintln!("usage: torture PLAN FOLDER");
        return ExitCode::from(64);
    };
    match run(Path::new(plan), Path::new(folder)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("torture: {error}");
            ExitCode::from(64)
        }
    }
}

/// Parses the arguments of a worker.
fn job(words: &[String]) -> Option<Job> {
    let [plan, number, urls, store, history] = words else {
        return None;
    };
    Some(Job {
        plan: Plan::read(Path::new(plan)).ok()?,
        number: number.parse().ok()?,
        urls: urls.clone(),
        store: store.parse().ok()?,
        history: history.into(),
    })
}

/// Runs a plan. Returns whether it passed.
fn run(path: &Path, folder: &Path) -> Result<bool, String> {
    let plan = Plan::read(path)?;
    std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let mut environment = Environment::start(&plan, path, folder);
    let memory = environment.memory();
    let steal = StealMonitor::start();
    let servers = environment.servers.all().iter().map(Server::port);
    let counter = (plan.max_connections > 0).then(|| ConnectionCounter::start(servers.collect()));
    let from = history::now();
    let mut log = nemesis::run(&plan, &mut environment);
    let until = history::now();
    let connection_counts = counter.map(ConnectionCounter::stop).unwrap_or_default();
    let artifacts = environment.shut_down(memory);
    log.faults.extend(steal.stop());
    let attempts: Vec<_> = artifacts
        .histories
        .iter()
        .enumerate()
        .flat_map(|(process, events)| attempt::attempts(process, events))
        .collect();
    let run = Run {
        plan: &plan,
        file: &path.file_stem().unwrap_or_default().to_string_lossy(),
        from,
        until,
        attempts: &attempts,
        faults: &log.faults,
        faulty_requests: artifacts.faulty_requests,
        lost_writes: store::lost_without_fencing(&artifacts.store),
        verdicts: &[
            exclusion::check(&plan, &attempts),
            tokens::check(&plan, &attempts),
            linearizability::check(&plan, &attempts),
            hand_over::check(&artifacts.histories),
            store::check(&artifacts.histories, &artifacts.store),
            waiting::check(&plan, &attempts, &log.faults),
            service::check(&plan, &attempts, &log.faults),
            connections::check(&plan, &connection_counts),
            order::check(&plan, &attempts, &log.calms),
            leaks::check(&plan, &artifacts),
        ],
    };
    print!("{}", run.text());
    let write = |file: &str, text: String| {
        std::fs::write(folder.join(file), text).map_err(|error| error.to_string())
    };
    write("faults.txt", run.fault_list())?;
    write("report.html", report::page(&run))?;
    write("figures.json", report::figures(&run))?;
    Ok(run.passed())
}
