//! A master, its replicas, and the sentinels that watch them: real processes, as the servers are.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::flavor::Flavor;
use crate::resp::{Connection, Reply};
use crate::server::{Port, Server, Setup, forget_pid, note_pid};

/// The name that the sentinels know the group by.
pub const GROUP: &str = "group";

/// The password of the sentinels, which is not that of the servers.
pub const SENTINEL_PASSWORD: &str = "watch-over-me";

/// How long a server is silent before a sentinel calls it down: so long that a machine that stalls does not cause a
/// failover.
const PATIENT_MS: u32 = 20_000;

/// The same while a failover is waited for.
const IMPATIENT_MS: u32 = 2000;

/// Sentinels that notice each other and changes of roles sooner than by default, and that act at once after a stall,
/// which otherwise makes them do nothing for half a minute.
const PACE: [&str; 10] = [
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
    is_asleep: AtomicBool,
}

impl SentinelGroup {
    /// Starts a master, so many replicas, and three sentinels that agree by two; returns when all know
    /// of each other.
    ///
    /// # Panics
    ///
    /// When they do not within a minute.
    #[must_use]
    pub fn start(setup: &Setup, flavor: &Flavor, replicas: usize) -> Self {
        // Else a replica waits five seconds for others to come.
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
        group.until("the sentinels answer", || {
            let mut sentinels = group.sentinels.iter();
            sentinels.all(|one| one.ask(&PACE) == Reply::Text("OK".to_owned()))
        });
        group.until("all know of each other", || {
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

    /// `host:port` of every sentinel, with commas in between.
    #[must_use]
    pub fn sentinels(&self) -> String {
        let hosts = self.sentinels.iter();
        let hosts: Vec<_> = hosts
            .map(|one| format!("127.0.0.1:{}", one.port.number))
            .collect();
        hosts.join(",")
    }

    /// `host:port` of the sentinel at `index`.
    #[must_use]
    pub fn sentinel(&self, index: usize) -> String {
        format!("127.0.0.1:{}", self.sentinels[index].port.number)
    }

    /// Has a sentinel forget the group, as one does that is started anew without its settings.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn remove_group(&self, index: usize) {
        self.sentinels[index].tell(&["SENTINEL", "REMOVE", GROUP]);
    }

    /// Has a sentinel name the server on `port` as the master, as one does whose settings are old.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn set_master(&self, index: usize, port: u16) {
        // One that has forgotten it refuses this.
        self.sentinels[index].ask(&["SENTINEL", "REMOVE", GROUP]);
        let monitor = ["SENTINEL", "MONITOR", GROUP, "127.0.0.1"];
        self.sentinels[index].tell(&[&monitor[..], &[&port.to_string(), "2"]].concat());
    }

    /// Has a sentinel that forgot the group watch it again.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn restore_group(&self, index: usize) {
        let sentinel = &self.sentinels[index];
        self.set_master(index, self.servers[self.master()].port());
        let patient = PATIENT_MS.to_string();
        let set = ["SENTINEL", "SET", GROUP];
        let settings = [
            "down-after-milliseconds",
            &patient,
            "failover-timeout",
            "5000",
        ];
        sentinel.tell(&[&set[..], &settings].concat());
    }

    /// Stops a sentinel where it is. It is asked nothing until it goes on.
    ///
    /// # Panics
    ///
    /// When it has ended.
    pub fn pause_sentinel(&self, index: usize) {
        self.sentinels[index].sleep(true);
    }

    /// Lets a sentinel go on. What it knows is as old as its sleep was long.
    ///
    /// # Panics
    ///
    /// When it has ended.
    pub fn resume_sentinel(&self, index: usize) {
        self.sentinels[index].sleep(false);
    }

    /// The process of each sentinel, and how many commands it has executed.
    ///
    /// # Panics
    ///
    /// When one does not answer.
    #[must_use]
    pub fn sentinel_command_counts(&self) -> Vec<(u32, u64)> {
        let load = |one: &Sentinel| {
            let stats = one.ask(&["INFO", "stats"]);
            let mut lines = stats.text().lines();
            let commands = lines.find_map(|line| line.strip_prefix("total_commands_processed:"));
            (
                one.child.id(),
                commands.and_then(|it| it.parse().ok()).expect("a number"),
            )
        };
        self.sentinels.iter().map(load).collect()
    }

    /// The sentinels that a client of the library is connected to.
    #[must_use]
    pub fn connected_sentinels(&self) -> Vec<usize> {
        let is_asked = |one: &Sentinel| match one.ask(&["CLIENT", "LIST"]) {
            Reply::Text(list) => list.contains("cmd=sentinel|get-master-addr-by-name"),
            _ => false,
        };
        let sentinels = self.sentinels.iter().enumerate();
        let asked = sentinels.filter(|(_, one)| is_asked(one));
        asked.map(|(at, _)| at).collect()
    }

    /// The server at `index`; 0 was the first master.
    #[must_use]
    pub fn server(&self, index: usize) -> &Server {
        &self.servers[index]
    }

    /// All servers.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Kills the server at `index`.
    pub fn kill(&mut self, index: usize) {
        self.servers[index].kill();
    }

    /// Starts the server at `index` again, as it was started first: a master as a master.
    pub fn restart(&mut self, index: usize) {
        self.servers[index].restart();
    }

    /// Kills a sentinel.
    pub fn kill_sentinel(&mut self, index: usize) {
        self.sentinels[index].end();
    }

    /// The index of the server that the last sentinel calls the master, or one before it if that does not know.
    ///
    /// # Panics
    ///
    /// When none answers.
    #[must_use]
    pub fn master(&self) -> usize {
        let mut sentinels = self.sentinels.iter().rev();
        let master = sentinels.find_map(|sentinel| self.master_by(sentinel));
        master.expect("a sentinel that answers")
    }

    fn master_by(&self, sentinel: &Sentinel) -> Option<usize> {
        let answer = sentinel.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", GROUP]);
        let Reply::List(address) = answer else {
            return None;
        };
        let port: u16 = address[1].text().parse().expect("a port");
        let mut servers = self.servers.iter();
        servers.position(|server| server.port() == port)
    }

    /// Waits until all sentinels that live have made the same other server the master, and it takes writes. Only
    /// while this waits do the sentinels notice soon that a server is down.
    ///
    /// # Panics
    ///
    /// When they do not within a minute.
    pub fn wait_for_new_master(&self, former: usize) {
        self.call_down_after(IMPATIENT_MS);
        self.until("another master", || {
            let mut masters = self.sentinels.iter().filter_map(|one| self.master_by(one));
            masters.next().is_some_and(|first| {
                first != former
                    && masters.all(|other| other == first)
                    && self.servers[first].is_master()
            })
        });
        self.call_down_after(PATIENT_MS);
    }

    fn call_down_after(&self, millis: u32) {
        let millis = millis.to_string();
        for sentinel in &self.sentinels {
            // One that was killed does not answer.
            sentinel.ask(&["SENTINEL", "SET", GROUP, "down-after-milliseconds", &millis]);
        }
    }

    /// Waits until no sentinel is about to change anything: one that comes back meanwhile may be made the master.
    ///
    /// # Panics
    ///
    /// When that does not happen within a minute.
    pub fn wait_until_agreed(&self) {
        self.until("agreed", || self.agreed_master().is_some());
    }

    /// The master, if all sentinels that live agree who it is, none of them is about to change it, and it takes writes.
    #[must_use]
    pub fn agreed_master(&self) -> Option<usize> {
        let living = self
            .sentinels
            .iter()
            .filter(|one| one.ask(&["PING"]) == Reply::Text("PONG".to_owned()));
        let mut masters = living.map(|one| {
            let calm = one.master_field("flags").as_deref() == Some("master");
            self.master_by(one).filter(|_| calm)
        });
        let master = masters.next()??;
        let agreed = masters.all(|other| other == Some(master));
        (agreed && self.servers[master].is_master()).then_some(master)
    }

    fn until(&self, what: &str, condition: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < end, "never: {what}");
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
        let port = Port::free();
        let settings = format!(
            "port {}\nbind 127.0.0.1\nrequirepass {SENTINEL_PASSWORD}\n\
             sentinel sentinel-pass {SENTINEL_PASSWORD}\n\
             sentinel monitor {GROUP} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {GROUP} {PATIENT_MS}\n\
             sentinel failover-timeout {GROUP} 5000\n",
            port.number
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
        note_pid(child.id());
        Self {
            child,
            port,
            folder,
            is_asleep: AtomicBool::new(false),
        }
    }

    /// One question; an error where it does not answer.
    fn ask(&self, args: &[&str]) -> Reply {
        if self.is_asleep.load(Ordering::SeqCst) {
            return Reply::Error("it sleeps".to_owned());
        }
        let asked = Connection::open(self.port.number).and_then(|mut connection| {
            connection.ask(&["AUTH", SENTINEL_PASSWORD])?;
            connection.ask(args)
        });
        asked.unwrap_or_else(|error| Reply::Error(error.to_string()))
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

    fn sleep(&self, sleeps: bool) {
        self.is_asleep.store(sleeps, Ordering::SeqCst);
        let signal = if sleeps { Signal::STOP } else { Signal::CONT };
        let pid = Pid::from_raw(self.child.id().cast_signed());
        kill_process(pid.expect("a process"), signal).expect("a signal");
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        forget_pid(self.child.id());
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.end();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
