//! The bare engine: the commands of a pair, encoded in advance, on a raw
//! socket. Replies are only counted.

use std::io::{Read, Write};
use std::net::TcpStream;

pub(crate) struct Engine {
    stream: TcpStream,
    release: Release,
}

/// The release command that Leasehold uses on this server.
enum Release {
    Delex,
    Delifeq,
    Script(String),
}

impl Engine {
    pub(crate) fn connect(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server is up");
        stream.set_nodelay(true).expect("a socket");
        let mut engine = Self {
            stream,
            release: Release::Delex,
        };
        let script = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end redis.call('DEL', KEYS[1]) \
                      redis.call('SPUBLISH', ARGV[2], '') return 1";
        engine.release = if engine.knows("DELEX") {
            Release::Delex
        } else if engine.knows("DELIFEQ") {
            Release::Delifeq
        } else {
            let reply = engine.ask(&["SCRIPT", "LOAD", script]);
            Release::Script(reply.lines().nth(1).expect("a digest").to_owned())
        };
        engine
    }

    fn knows(&mut self, command: &str) -> bool {
        !self.ask(&["COMMAND", "INFO", command]).contains("-1")
    }

    fn ask(&mut self, words: &[&str]) -> String {
        self.stream
            .write_all(&encode(words))
            .expect("the server is up");
        std::thread::sleep(std::time::Duration::from_millis(50));
        let mut reply = vec![0; 64 * 1024];
        let length = self.stream.read(&mut reply).expect("the server is up");
        String::from_utf8_lossy(&reply[..length]).into_owned()
    }

    pub(crate) fn pairs(&mut self, prefix: &str, tasks: u64, count: u64) {
        let (mut lock, mut unlock) = (Vec::new(), Vec::new());
        for task in 0..tasks {
            let name = format!("lock:{prefix}:{task}");
            let channel = format!("leasehold:wake:{{0}}:{name}");
            let value = "lh1 0123456789abcdef0123456789abcdef 1763000000000 4711 host - ";
            lock.extend(encode(&["SET", &name, value, "NX", "GET", "PX", "30000"]));
            lock.extend(encode(&["INCR", "engine-counter"]));
            match &self.release {
                Release::Delex => unlock.extend(encode(&["DELEX", &name, "IFEQ", value])),
                Release::Delifeq => unlock.extend(encode(&["DELIFEQ", &name, value])),
                Release::Script(digest) => {
                    unlock.extend(encode(&["EVALSHA", digest, "1", &name, value, &channel]));
                }
            }
            if !matches!(self.release, Release::Script(_)) {
                unlock.extend(encode(&["SPUBLISH", &channel, ""]));
            }
        }
        let replies = match self.release {
            Release::Script(_) => tasks,
            _ => 2 * tasks,
        };
        for _ in 0..count / tasks {
            self.exchange(&lock, 2 * tasks);
            self.exchange(&unlock, replies);
        }
    }

    /// Sends a pipeline and reads its replies, each of which is one line.
    fn exchange(&mut self, pipeline: &[u8], replies: u64) {
        self.stream.write_all(pipeline).expect("the server is up");
        let (mut remaining, mut chunk) = (replies, [0; 64 * 1024]);
        while remaining > 0 {
            let length = self.stream.read(&mut chunk).expect("the server is up");
            remaining -= chunk[..length]
                .iter()
                .filter(|byte| **byte == b'\n')
                .count() as u64;
        }
    }
}

fn encode(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}
