//! Tries to break the locks. `torture PLAN FOLDER` starts servers, a bad network and workers as the plan says, breaks things, checks
//! what the workers wrote down, and leaves a page in the folder. Ends with 1 when something is wrong.
//!
//! A plan is a file of `plans/`; [`worker`] is the process that takes locks, [`nemesis`] the one that breaks things, [`check`] holds those
//! who look at the histories, [`machine`] says when it was not ours. `TORTURE_SECONDS` and `TORTURE_SEED` stand above what the plan says.

mod attempt;
mod census;
mod check;
mod coupons;
mod history;
mod machine;
mod nemesis;
mod plan;
mod processors;
mod report;
mod site;
mod worker;

use std::path::Path;
use std::process::ExitCode;

use census::Census;
use check::{connections, exclusion, leftovers, linear, order, service, store, tokens, waiting};
use plan::Plan;
use report::Run;
use site::Site;
use testkit::Server;
use worker::Job;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words_of = |word: &str| words.split_first().filter(|(first, _)| *first == word);
    if let Some((_, rest)) = words_of("worker") {
        worker::work(job(rest).expect("the words of a worker"));
        return ExitCode::SUCCESS;
    }
    if let Some((_, rest)) = words_of("child") {
        return worker::child(rest).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let [plan, folder] = words.as_slice() else {
        eprintln!("usage: torture PLAN FOLDER");
        return ExitCode::from(64);
    };
    match torture(Path::new(plan), Path::new(folder)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("torture: {why}");
            ExitCode::from(64)
        }
    }
}

/// What a worker was told by words.
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

/// Carries out a plan; whether all is well.
fn torture(path: &Path, folder: &Path) -> Result<bool, String> {
    let plan = Plan::read(path)?;
    std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let mut site = Site::start(&plan, path, folder);
    let memory = site.memory();
    let watch = machine::Watch::start();
    let servers = site.servers.all().iter().map(Server::port);
    let census = (plan.connections > 0).then(|| Census::start(servers.collect()));
    let from = history::now();
    let mut done = nemesis::rage(&plan, &mut site);
    let until = history::now();
    let seen = census.map(Census::end).unwrap_or_default();
    let remains = site.end(memory);
    done.deeds.extend(watch.end());
    let attempts: Vec<_> = remains
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
        deeds: &done.deeds,
        harmed: remains.harmed,
        forgotten: store::lost_without_fencing(&remains.books),
        verdicts: &[
            exclusion::check(&plan, &attempts),
            tokens::check(&plan, &attempts),
            linear::check(&plan, &attempts),
            store::check(&remains.histories, &remains.books),
            waiting::check(&plan, &attempts, &done.deeds),
            service::check(&plan, &attempts, &done.deeds),
            connections::check(&plan, &seen),
            order::check(&plan, &attempts, &done.calms),
            leftovers::check(&plan, &remains),
        ],
    };
    print!("{}", run.text());
    std::fs::write(folder.join("faults.txt"), run.diary()).map_err(|error| error.to_string())?;
    std::fs::write(folder.join("report.html"), run.page()).map_err(|error| error.to_string())?;
    Ok(run.is_well())
}
