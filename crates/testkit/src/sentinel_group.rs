//! A master, its replicas, and the sentinels that monitor them.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use leasehold_testkit::{Port, Server};
use rustix::process::{Pid, Signal, kill_process};

use crate::flavor::Flavor;
use crate::resp::{Connection, Reply};
use crate::server_ext::ServerExt;
use crate::setup::Setup;

/// The group's name.
pub const GROUP: &str = "group";

/// The password of the sentinels, which differs from that of the servers.
pub const SENTINEL_PASSWORD: &str = "sentinel-password";

/// `down-after-milliseconds`: long enough that a stalled machine does not cause
/// a failover.
const DOWN_AFTER_MS: u32 = 20_000;

/// `down-after-milliseconds` while a failover is expected.
const SHORT_DOWN_AFTER_MS: u32 = 2000;

/// Makes sentinels discover each other and role changes sooner. Also disables
/// TILT mode, in which a sentinel does nothing for half a minute after a stall.
const TIMING: [&str; 10] = [
    "SENTINEL",
    "DEBUG",
    "INFO-PERIOD",
    "1000",
    "PUBLISH-PERIOD",
    "500",
    "ASK-PERIOD",
    "200",
    "TILT-TRIGGER",
    "60000",
];

/// A master with replicas and sentinels.
#[derive(Debug)]
pub struct SentinelGroup {
    servers: Vec<Server>,
    sentinels: Vec<Sentinel>,
}

#[derive(Debug)]
struct Sentinel {
    child: Child,
    port: Port,
    folder: PathBuf,
    is_paused: AtomicBool,
}

impl SentinelGroup {
    /// Starts a master, `replicas` replicas, and three sentinels with a quorum
    /// of two. Returns when all know each other.
    ///
    /// # Panics
    ///
    /// If they do not know each other within a minute.
    #[must_use]
    pub fn start(setup: &Setup, flavor: &Flavor, replicas: usize) -> Self {
        // By default a replica waits five seconds for other replicas.
        let setup = setup.clone().option("repl-diskless-sync-delay", "0");
        let master = setup.clone().start(flavor);
        let of = format!("127.0.0.1 {}", master.port());
        let mut servers = vec![master];
        for _ in 0..replicas {
            let setup = setup.clone().option("replicaof", &of);
            servers.push(setup.start(flavor));
        }
        let sentinels = (0..3)
            .map(|_| Sentinel::start(flavor, servers[0].port()))
            .collect();
        let group = Self { servers, sentinels };
        group.wait_until("the sentinels reply", || {
            let mut sentinels = group.sentinels.iter();
            sentinels.all(|one| one.ask(&TIMING) == Reply::Text("OK".to_owned()))
        });
        group.wait_until("all know each other", || {
            group.sentinels.iter().all(|sentinel| {
                let field = |name: &str| sentinel.master_field(name);
                field("num-slaves") == Some(replicas.to_string())
                    && field("num-other-sentinels").as_deref() == Some("2")
            }) && group.servers[1..].iter().all(|replica| {
                let role = replica.ask(&["ROLE"]);
                role.list()
                    .get(3)
                    .is_some_and(|state| state.text() == "connected")
            })
        });
        group
    }

    /// Returns `host:port` of every sentinel, separated by commas.
    #[must_use]
    pub fn sentinels(&self) -> String {
        let hosts = self.sentinels.iter();
        let hosts: Vec<_> = hosts
            .map(|one| format!("127.0.0.1:{}", one.port.number()))
            .collect();
        hosts.join(",")
    }

    /// Returns `host:port` of the sentinel at `index`.
    #[must_use]
    pub fn sentinel(&self, index: usize) -> String {
        format!("127.0.0.1:{}", self.sentinels[index].port.number())
    }

    /// Removes the group from a sentinel, as a restart without its
    /// configuration does.
    ///
    /// # Panics
    ///
    /// If the sentinel returns an error.
    pub fn remove_group(&self, index: usize) {
        self.sentinels[index].tell(&["SENTINEL", "REMOVE", GROUP]);
    }

    /// Makes a sentinel report the server on `port` as the master, as an
    /// outdated configuration does.
    ///
    /// # Panics
    ///
    /// If the sentinel returns an error.
    pub fn set_master(&self, index: usize, port: u16) {
        // Fails if the group is already removed.
        self.sentinels[index].ask(&["SENTINEL", "REMOVE", GROUP]);
        let monitor = ["SENTINEL", "MONITOR", GROUP, "127.0.0.1"];
        self.sentinels[index].tell(&[&monitor[..], &[&port.to_string(), "2"]].concat());
    }

    /// Makes a sentinel monitor the group again.
    ///
    /// # Panics
    ///
    /// If the sentinel returns an error.
    pub fn restore_group(&self, index: usize) {
        let sentinel = &self.sentinels[index];
        self.set_master(index, self.servers[self.master()].port());
        let down_after = DOWN_AFTER_MS.to_string();
        let set = ["SENTINEL", "SET", GROUP];
        let settings = [
            "down-after-milliseconds",
            &down_after,
            "failover-timeout",
            "5000",
        ];
        sentinel.tell(&[&set[..], &settings].concat());
    }

    /// Pauses a sentinel. Queries skip it until it resumes.
    ///
    /// # Panics
    ///
    /// If its process has exited.
    pub fn pause_sentinel(&self, index: usize) {
        self.sentinels[index].set_paused(true);
    }

    /// Resumes a sentinel. Its view of the group is as old as the pause.
    ///
    /// # Panics
    ///
    /// If its process has exited.
    pub fn resume_sentinel(&self, index: usize) {
        self.sentinels[index].set_paused(false);
    }

    /// Returns the process ID of each sentinel, and the number of commands it
    /// has executed.
    ///
    /// # Panics
    ///
    /// If a sentinel does not reply.
    #[must_use]
    pub fn sentinel_command_counts(&self) -> Vec<(u32, u64)> {
        let count = |one: &Sentinel| {
            let stats = one.ask(&["INFO", "stats"]);
            let mut lines = stats.text().lines();
            let commands = lines.find_map(|line| line.strip_prefix("total_commands_processed:"));
            (
                one.child.id(),
                commands.and_then(|it| it.parse().ok()).expect("a number"),
            )
        };
        self.sentinels.iter().map(count).collect()
    }

    /// Returns the sentinels that a client of the library is connected to.
    #[must_use]
    pub fn connected_sentinels(&self) -> Vec<usize> {
        let is_connected = |one: &Sentinel| match one.ask(&["CLIENT", "LIST"]) {
            Reply::Text(list) => list.contains("cmd=sentinel|get-master-addr-by-name"),
            _ => false,
        };
        let sentinels = self.sentinels.iter().enumerate();
        let connected = sentinels.filter(|(_, one)| is_connected(one));
        connected.map(|(at, _)| at).collect()
    }

    /// Returns the server at `index`. The first master is server 0.
    #[must_use]
    pub fn server(&self, index: usize) -> &Server {
        &self.servers[index]
    }

    /// Returns all servers.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Kills the server at `index`.
    pub fn kill(&mut self, index: usize) {
        self.servers[index].kill();
    }

    /// Restarts the server at `index` in its initial role.
    pub fn restart(&mut self, index: usize) {
        self.servers[index].restart().expect("the server starts");
    }

    /// Kills a sentinel.
    pub fn kill_sentinel(&mut self, index: usize) {
        self.sentinels[index].kill();
    }

    /// Returns the index of the master, according to the last sentinel that
    /// knows it.
    ///
    /// # Panics
    ///
    /// If no sentinel replies.
    #[must_use]
    pub fn master(&self) -> usize {
        let mut sentinels = self.sentinels.iter().rev();
        let master = sentinels.find_map(|sentinel| self.master_by(sentinel));
        master.expect("a sentinel that replies")
    }

    fn master_by(&self, sentinel: &Sentinel) -> Option<usize> {
        let reply = sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", GROUP]);
        let Reply::List(address) = reply else {
            return None;
        };
        let port: u16 = address[1].text().parse().expect("a port");
        let mut servers = self.servers.iter();
        servers.position(|server| server.port() == port)
    }

    /// Waits until all live sentinels agree on a master other than `former`,
    /// and it accepts writes. `down-after-milliseconds` is short only during
    /// this call.
    ///
    /// # Panics
    ///
    /// If no failover happens within a minute.
    pub fn wait_for_new_master(&self, former: usize) {
        self.set_down_after(SHORT_DOWN_AFTER_MS);
        self.wait_until("another server is the master", || {
            let mut masters = self.sentinels.iter().filter_map(|one| self.master_by(one));
            masters.next().is_some_and(|first| {
                first != former
                    && masters.all(|other| other == first)
                    && self.servers[first].is_master()
            })
        });
        self.set_down_after(DOWN_AFTER_MS);
    }

    fn set_down_after(&self, millis: u32) {
        let millis = millis.to_string();
        for sentinel in &self.sentinels {
            // Killed sentinels do not reply.
            sentinel.ask(&["SENTINEL", "SET", GROUP, "down-after-milliseconds", &millis]);
        }
    }

    /// Waits until no sentinel is in a failover. A server that restarts earlier
    /// may become the master.
    ///
    /// # Panics
    ///
    /// If a failover takes longer than a minute.
    pub fn wait_until_agreed(&self) {
        self.wait_until("the sentinels agree", || self.agreed_master().is_some());
    }

    /// Returns the master if all live sentinels agree on it, none of them is in
    /// a failover, and it accepts writes.
    #[must_use]
    pub fn agreed_master(&self) -> Option<usize> {
        let live = self
            .sentinels
            .iter()
            .filter(|one| one.ask(&["PING"]) == Reply::Text("PONG".to_owned()));
        let mut masters = live.map(|one| {
            let calm = one.master_field("flags").as_deref() == Some("master");
            self.master_by(one).filter(|_| calm)
        });
        let master = masters.next()??;
        let agreed = masters.all(|other| other == Some(master));
        (agreed && self.servers[master].is_master()).then_some(master)
    }

    fn wait_until(&self, what: &str, condition: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(
                Instant::now() < end,
                "timed out after a minute waiting until {what}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Sentinel {
    fn start(flavor: &Flavor, master: u16) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasehold-sentinel-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder for the sentinel");
        let port = Port::reserve().expect("a free port");
        let settings = format!(
            "port {}\nbind 127.0.0.1\nrequirepass {SENTINEL_PASSWORD}\n\
             sentinel sentinel-pass {SENTINEL_PASSWORD}\n\
             sentinel monitor {GROUP} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {GROUP} {DOWN_AFTER_MS}\n\
             sentinel failover-timeout {GROUP} 5000\n",
            port.number()
        );
        std::fs::write(folder.join("sentinel.conf"), settings).expect("a file");
        let child = Command::new(&flavor.program)
            .args(["sentinel.conf", "--sentinel"])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the sentinel's program");
        Self {
            child,
            port,
            folder,
            is_paused: AtomicBool::new(false),
        }
    }

    /// Sends a command. Returns an error reply if the sentinel is unreachable.
    fn ask(&self, args: &[&str]) -> Reply {
        if self.is_paused.load(Ordering::SeqCst) {
            return Reply::Error("the sentinel is paused".to_owned());
        }
        let reply = Connection::open(self.port.number()).and_then(|mut connection| {
            connection.ask(&["AUTH", SENTINEL_PASSWORD])?;
            connection.ask(args)
        });
        reply.unwrap_or_else(|error| Reply::Error(error.to_string()))
    }

    fn tell(&self, args: &[&str]) {
        if let Reply::Error(error) = self.ask(args) {
            panic!("{args:?}: {error}");
        }
    }

    fn master_field(&self, name: &str) -> Option<String> {
        match self.ask(&["SENTINEL", "MASTER", GROUP]) {
            Reply::List(fields) => {
                let pairs = fields.chunks_exact(2);
                let mut found = pairs.filter(|pair| pair[0].text() == name);
                found.next().map(|pair| pair[1].text().to_owned())
            }
            _ => None,
        }
    }

    fn set_paused(&self, paused: bool) {
        self.is_paused.store(paused, Ordering::SeqCst);
        let signal = if paused { Signal::STOP } else { Signal::CONT };
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill_process(pid.expect("a process"), signal).expect("a signal");
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
