//! Where a run takes place: servers, a bad network between them and the workers, a store that nothing is done to, and the workers.

mod sentinels;
mod servers;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::Quorum;
use rustix::process::{Pid, Signal, kill_process};
use testkit::{Fault as Bad, Flavor, Proxy, Reply, SeededRng, Server};

pub(crate) use sentinels::SENTINELS;
pub(crate) use servers::Servers;

use crate::check::leftovers;
use crate::coupons::{self, Books};
use crate::history::{self, Event};
use crate::plan::{Plan, Topology};
use crate::worker::{self, Job};

pub(crate) struct Site {
    pub(crate) servers: Servers,
    /// One for each place of a worker where there is one server, one for each server of a quorum, none elsewhere.
    pub(crate) networks: Vec<Proxy>,
    /// What the networks share.
    weather: Arc<Weather>,
    store: Server,
    workers: Vec<Child>,
    /// All that ever worked, also those that were killed.
    histories: Vec<PathBuf>,
    folder: PathBuf,
    plan_file: PathBuf,
    plan: Plan,
}

/// Whether requests are harmed at present, and how many were.
#[derive(Default)]
struct Weather {
    fair: AtomicBool,
    harmed: AtomicU64,
}

/// What a run leaves.
#[derive(Default)]
pub(crate) struct Remains {
    pub(crate) histories: Vec<Vec<Event>>,
    pub(crate) books: Vec<Books>,
    /// Of every server: keys, and how long they live.
    pub(crate) keys: Vec<(String, i64)>,
    pub(crate) channels: Vec<String>,
    /// Locks of which one alone could not have all.
    pub(crate) not_to_be_had: Vec<u32>,
    /// Requests that were cut, swallowed, repeated or late.
    pub(crate) harmed: u64,
    /// By how much the servers' memory has grown, in bytes.
    pub(crate) grown: i64,
}

/// How long a worker has to end when it is told to.
const MANNERS: Duration = Duration::from_secs(60);

impl Site {
    pub(crate) fn start(plan: &Plan, plan_file: &Path, folder: &Path) -> Self {
        let servers = Servers::start(plan);
        let weather = Arc::<Weather>::default();
        let upstreams: Vec<u16> = match plan.topology {
            Topology::One => vec![servers.all()[0].port(); plan.processes],
            Topology::Quorum => servers.all().iter().map(Server::port).collect(),
            Topology::Sentinel | Topology::Cluster => Vec::new(),
        };
        let networks = (1..).zip(upstreams);
        let mut site = Self {
            networks: networks
                .map(|(place, port)| bad_network(port, plan, place, weather.clone()))
                .collect(),
            servers,
            weather,
            store: Server::start(&Flavor::one()),
            workers: Vec::new(),
            histories: Vec::new(),
            folder: folder.to_owned(),
            plan_file: plan_file.to_owned(),
            plan: plan.clone(),
        };
        if plan.topology == Topology::Quorum {
            site.found();
        }
        for place in 0..plan.processes {
            let worker = site.worker(place);
            site.workers.push(worker);
        }
        site
    }

    /// A new quorum has to be told that it is one.
    fn found(&self) {
        let urls = self.servers.all().iter();
        let urls: Vec<_> = urls
            .map(|server| format!("redis://127.0.0.1:{}", server.port()))
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let builder = Quorum::builder(urls).lease(self.plan.lease());
        let builder = builder.max_lease(worker::max_lease(&self.plan));
        runtime.block_on(builder.bootstrap()).expect("all are up");
    }

    /// Starts one more worker.
    fn worker(&mut self, place: usize) -> Child {
        let number = self.histories.len();
        let history = self.folder.join(format!("worker-{number}.txt"));
        let _ = std::fs::remove_file(&history);
        let job = self.job(place, history.clone());
        self.histories.push(history);
        Command::new(std::env::current_exe().expect("this program"))
            .arg("worker")
            .arg(&self.plan_file)
            .args([
                number.to_string(),
                job.urls,
                job.store.to_string(),
                job.history.to_string_lossy().into_owned(),
            ])
            .stdin(Stdio::piped())
            .spawn()
            .expect("this program")
    }

    /// What the next worker at a place is told.
    fn job(&self, place: usize, history: PathBuf) -> Job {
        let through = |network: &Proxy| format!("redis://worker:any@127.0.0.1:{}", network.port());
        let urls = match (self.servers.url(), self.plan.topology) {
            (Some(url), _) => url,
            (None, Topology::One) => through(&self.networks[place]),
            (None, _) => {
                let urls: Vec<_> = self.networks.iter().map(through).collect();
                urls.join(" ")
            }
        };
        Job {
            plan: self.plan.clone(),
            number: self.histories.len(),
            urls,
            store: self.store.port(),
            history,
        }
    }

    /// Kills a worker, and has another in its place.
    pub(crate) fn replace_worker(&mut self, place: usize) {
        let new = self.worker(place);
        let mut old = std::mem::replace(&mut self.workers[place], new);
        let _ = old.kill();
        let _ = old.wait();
    }

    pub(crate) fn signal_worker(&self, place: usize, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.workers[place].id().cast_signed()) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Whether requests are left alone for a while.
    pub(crate) fn calm(&self, calm: bool) {
        self.weather.fair.store(calm, Ordering::SeqCst);
    }

    /// Memory of all servers together.
    pub(crate) fn memory(&self) -> i64 {
        let servers = self.servers.all().iter();
        servers
            .map(|server| server.info("used_memory") as i64)
            .sum()
    }

    /// Lets everything end well, and collects what was written and what is left.
    pub(crate) fn end(mut self, memory_before: i64) -> Remains {
        self.networks.iter().for_each(Proxy::heal);
        for worker in &mut self.workers {
            drop(worker.stdin.take());
        }
        for mut worker in self.workers.drain(..) {
            let limit = Instant::now() + MANNERS;
            while worker.try_wait().is_ok_and(|status| status.is_none()) {
                if Instant::now() > limit {
                    eprintln!("a worker does not end; its history says no more than that");
                    let _ = worker.kill();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        // Those who were killed give nothing back.
        let limit = self.plan.lease() * 2 + self.plan.stuck();
        self.while_something_is_left(limit);
        let not_to_be_had = worker::not_to_be_had(&self.job(0, PathBuf::new()));
        self.while_something_is_left(limit);
        let read = |path: &PathBuf| history::read(path).unwrap_or_default();
        let mut store = self.store.connect();
        Remains {
            histories: self.histories.iter().map(read).collect(),
            books: (0..self.plan.locks)
                .map(|lock| coupons::books(&mut store, lock))
                .collect(),
            keys: self.keys(),
            not_to_be_had,
            channels: self.channels(),
            harmed: self.weather.harmed.load(Ordering::Relaxed),
            grown: self.memory() - memory_before,
        }
    }

    /// Waits until the servers have nothing any more but what is meant to stay and nobody listens, or `limit` is over.
    fn while_something_is_left(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let goes = |(key, _): &(String, i64)| !leftovers::is_meant_to_stay(key);
        let is_left = || self.keys().iter().any(goes) || !self.channels().is_empty();
        while Instant::now() < end && is_left() {
            std::thread::sleep(Duration::from_millis(250));
        }
    }

    fn channels(&self) -> Vec<String> {
        self.texts(&["PUBSUB", "SHARDCHANNELS"])
    }

    fn keys(&self) -> Vec<(String, i64)> {
        let mut keys = Vec::new();
        for server in self.servers.all() {
            let answer = server.ask(&["KEYS", "*"]);
            for key in answer.list() {
                let life = server.ask(&["PTTL", key.text()]);
                // A replica in a cluster answers for its master's keys by naming it.
                if let Reply::Int(life) = life {
                    keys.push((key.text().to_owned(), life));
                }
            }
        }
        keys
    }

    /// What all servers answer, together.
    fn texts(&self, words: &[&str]) -> Vec<String> {
        let servers = self.servers.all().iter();
        let answers = servers.map(|server| server.ask(words));
        let texts = |answer: Reply| {
            let texts = answer.list().iter();
            texts.map(|text| text.text().to_owned()).collect::<Vec<_>>()
        };
        answers.flat_map(texts).collect()
    }
}

/// Cuts, swallows, repeats and delays some of the requests, as the seed says.
fn bad_network(upstream: u16, plan: &Plan, place: u64, weather: Arc<Weather>) -> Proxy {
    let network = Proxy::start(upstream);
    let rng = SeededRng::new(plan.seed.wrapping_add(place * 7919));
    let rng = std::sync::Mutex::new(rng);
    let (share, lease) = (plan.bad_requests, plan.lease_ms.min(1000));
    network.inject(move |_| {
        let mut rng = rng.lock().expect("no panic");
        if rng.below(1000) >= share || weather.fair.load(Ordering::Relaxed) {
            return Bad::None;
        }
        weather.harmed.fetch_add(1, Ordering::Relaxed);
        // Mostly those that leave the connection whole: each of the others harms all that is on its way there, and a network that does
        // that many times a second carries nothing.
        match rng.below(200) {
            0..2 => Bad::CutRequest,
            2..4 => Bad::CutReply,
            4..6 => Bad::DropReplies,
            6 => Bad::Delay(Duration::from_millis(rng.below(lease / 2))),
            7..120 => Bad::DuplicateRequest,
            _ => Bad::Delay(Duration::from_millis(rng.below(5))),
        }
    });
    network
}
