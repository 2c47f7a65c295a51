//! When a server accepts requests.

use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

/// How long one probe waits for its reply.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns whether the process `pid` is a server that replies on `port`, and
/// has loaded its data. `log` returns what the process has logged.
pub(crate) fn is_ready(port: u16, pid: u32, log: impl Fn() -> String) -> bool {
    match info(port) {
        // Another process may listen on the port.
        Ok(Info::Text(info)) => {
            info.contains(&format!("\nprocess_id:{pid}\r")) && info.contains("\nloading:0\r")
        }
        // A server with a password does not report its process.
        Ok(Info::Refused) => log().contains("eady to accept connections"),
        Err(_) => false,
    }
}

enum Info {
    Text(String),
    Refused,
}

fn info(port: u16) -> Result<Info> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(PROBE_TIMEOUT))?;
    stream.write_all(b"*1\r\n$4\r\nINFO\r\n")?;
    let mut reader = BufReader::new(stream);
    let mut header = String::new();
    reader.read_line(&mut header)?;
    let Some(length) = header.strip_prefix('$') else {
        return Ok(Info::Refused);
    };
    let length = length.trim_end().parse().unwrap_or_default();
    let mut text = Vec::new();
    reader.take(length).read_to_end(&mut text)?;
    Ok(Info::Text(String::from_utf8_lossy(&text).into_owned()))
}
