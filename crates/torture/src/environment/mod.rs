//! The environment of a run: servers, a faulty network between them and the
//! workers, a store without faults, and the workers.

mod sentinels;
mod servers;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leasehold::Quorum;
use rustix::process::{Pid, Signal, kill_process};
use testkit::{Fault as RequestFault, Flavor, Proxy, Reply, SeededRng, Server, ServerExt};

pub(crate) use sentinels::{SENTINELS, SentinelFault};
use servers::Servers;

use crate::artifacts::{Artifacts, is_permanent};
use crate::fenced_store;
use crate::history;
use crate::plan::{Plan, Topology};
use crate::worker::{self, Job};

pub(crate) struct Environment {
    pub(crate) servers: Servers,
    /// One per worker of a standalone server, one per server of a quorum, and
    /// none otherwise.
    pub(crate) networks: Vec<Proxy>,
    network_state: Arc<NetworkState>,
    store: Server,
    workers: Vec<Child>,
    /// The histories of all workers, including those that were killed.
    histories: Vec<PathBuf>,
    folder: PathBuf,
    plan_file: PathBuf,
    plan: Plan,
}

/// State that the networks share.
#[derive(Default)]
struct NetworkState {
    /// No request is faulty while this is set.
    calm: AtomicBool,
    faulty_requests: AtomicU64,
}

/// How long a worker may take to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

impl Environment {
    pub(crate) fn start(plan: &Plan, plan_file: &Path, folder: &Path) -> Self {
        let servers = Servers::start(plan);
        let network_state = Arc::<NetworkState>::default();
        let upstreams: Vec<u16> = match plan.topology {
            Topology::Standalone => vec![servers.all()[0].port(); plan.processes],
            Topology::Quorum => servers.all().iter().map(Server::port).collect(),
            Topology::Sentinel | Topology::Cluster => Vec::new(),
        };
        let networks = (1..).zip(upstreams);
        let mut environment = Self {
            networks: networks
                .map(|(number, port)| faulty_network(port, plan, number, network_state.clone()))
                .collect(),
            servers,
            network_state,
            store: Flavor::one().start(),
            workers: Vec::new(),
            histories: Vec::new(),
            folder: folder.to_owned(),
            plan_file: plan_file.to_owned(),
            plan: plan.clone(),
        };
        if plan.topology == Topology::Quorum {
            environment.bootstrap();
        }
        for index in 0..plan.processes {
            let worker = environment.spawn_worker(index);
            environment.workers.push(worker);
        }
        environment
    }

    /// Bootstraps a new quorum.
    fn bootstrap(&self) {
        let urls = self.servers.all().iter();
        let urls: Vec<_> = urls
            .map(|server| format!("redis://127.0.0.1:{}", server.port()))
            .collect();
        Quorum::connect(urls)
            .lease(self.plan.lease())
            .max_lease(self.plan.max_lease())
            .bootstrap()
            .wait()
            .expect("all servers are up");
    }

    fn spawn_worker(&mut self, index: usize) -> Child {
        let number = self.histories.len();
        let history = self.folder.join(format!("worker-{number}.txt"));
        let _ = std::fs::remove_file(&history);
        let job = self.job(index, history.clone());
        self.histories.push(history);
        Command::new(std::env::current_exe().expect("the path of this program"))
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
            .expect("a worker")
    }

    /// Returns the job of the next worker at `index`.
    fn job(&self, index: usize, history: PathBuf) -> Job {
        let through = |network: &Proxy| format!("redis://worker:any@127.0.0.1:{}", network.port());
        let urls = match (self.servers.url(), self.plan.topology) {
            (Some(url), _) => url,
            (None, Topology::Standalone) => through(&self.networks[index]),
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

    /// Kills a worker, and starts another at its index.
    pub(crate) fn replace_worker(&mut self, index: usize) {
        let new = self.spawn_worker(index);
        let mut old = std::mem::replace(&mut self.workers[index], new);
        let _ = old.kill();
        let _ = old.wait();
    }

    pub(crate) fn signal_worker(&self, index: usize, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.workers[index].id().cast_signed()) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Suspends or resumes the faults of single requests.
    pub(crate) fn set_calm(&self, calm: bool) {
        self.network_state.calm.store(calm, Ordering::SeqCst);
    }

    /// Returns the memory of all servers together, in bytes.
    pub(crate) fn memory(&self) -> i64 {
        let servers = self.servers.all().iter();
        servers
            .map(|server| server.info("used_memory") as i64)
            .sum()
    }

    /// Shuts the workers down, and collects what the run leaves behind.
    pub(crate) fn shut_down(mut self, memory_before: i64) -> Artifacts {
        self.networks.iter().for_each(Proxy::heal);
        for worker in &mut self.workers {
            drop(worker.stdin.take());
        }
        for mut worker in self.workers.drain(..) {
            let limit = Instant::now() + EXIT_TIMEOUT;
            while worker.try_wait().is_ok_and(|status| status.is_none()) {
                if Instant::now() > limit {
                    eprintln!("killed a worker that did not exit within {EXIT_TIMEOUT:?}");
                    let _ = worker.kill();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        // The locks of killed workers expire.
        let limit = self.plan.lease() * 2 + self.plan.max_wait();
        self.wait_until_clean(limit);
        let unavailable = worker::unavailable_locks(&self.job(0, PathBuf::new()));
        self.wait_until_clean(limit);
        let read = |path: &PathBuf| history::read(path).unwrap_or_default();
        let mut store = self.store.connect();
        Artifacts {
            histories: self.histories.iter().map(read).collect(),
            store: (0..self.plan.locks)
                .map(|lock| fenced_store::contents(&mut store, lock))
                .collect(),
            keys: self.keys(),
            unavailable,
            channels: self.channels(),
            faulty_requests: self.network_state.faulty_requests.load(Ordering::Relaxed),
            grown: self.memory() - memory_before,
        }
    }

    /// Waits until the servers hold only permanent keys and no subscriptions,
    /// for at most `limit`.
    fn wait_until_clean(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let is_temporary = |(key, _): &(String, i64)| !is_permanent(key);
        let is_dirty = || self.keys().iter().any(is_temporary) || !self.channels().is_empty();
        while Instant::now() < end && is_dirty() {
            std::thread::sleep(Duration::from_millis(250));
        }
    }

    fn channels(&self) -> Vec<String> {
        let servers = self.servers.all().iter();
        let replies = servers.map(|server| server.ask(&["PUBSUB", "SHARDCHANNELS"]));
        let texts = |reply: Reply| {
            let texts = reply.list().iter();
            texts.map(|text| text.text().to_owned()).collect::<Vec<_>>()
        };
        replies.flat_map(texts).collect()
    }

    fn keys(&self) -> Vec<(String, i64)> {
        let mut keys = Vec::new();
        for server in self.servers.all() {
            let reply = server.ask(&["KEYS", "*"]);
            for key in reply.list() {
                let ttl = server.ask(&["PTTL", key.text()]);
                // A replica in a cluster redirects to its master.
                if let Reply::Int(ttl) = ttl {
                    keys.push((key.text().to_owned(), ttl));
                }
            }
        }
        keys
    }
}

/// Starts a proxy that cuts, drops, duplicates and delays some requests, chosen
/// by the seed.
fn faulty_network(upstream: u16, plan: &Plan, number: u64, state: Arc<NetworkState>) -> Proxy {
    let network = Proxy::start(upstream);
    let rng = SeededRng::new(plan.seed.wrapping_add(number * 7919));
    let rng = std::sync::Mutex::new(rng);
    let (per_mille, lease) = (plan.faulty_requests, plan.lease_ms.min(1000));
    network.inject(move |_| {
        let mut rng = rng.lock().expect("no panic");
        if rng.below(1000) >= per_mille || state.calm.load(Ordering::Relaxed) {
            return RequestFault::None;
        }
        state.faulty_requests.fetch_add(1, Ordering::Relaxed);
        // Most faults keep the connection intact. The others affect every
        // request in flight, and a network with many of them per second
        // makes no progress.
        match rng.below(200) {
            0..2 => RequestFault::CutRequest,
            2..4 => RequestFault::CutReply,
            4..6 => RequestFault::DropReplies,
            6 => RequestFault::Delay(Duration::from_millis(rng.below(lease / 2))),
            7..120 => RequestFault::DuplicateRequest,
            _ => RequestFault::Delay(Duration::from_millis(rng.below(5))),
        }
    });
    network
}
