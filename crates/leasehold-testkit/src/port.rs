//! Ports that parallel tests do not share.

use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

/// The first port, and the number of ports. They are below the ports that
/// operating systems use for outgoing connections.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A free loopback TCP port, reserved until the value is dropped.
///
/// No other value of this type has the same port, in any process of the
/// machine. Nothing listens on the port: start your own program on it.
///
/// The reservation is the UDP port with the same number, which this value
/// binds. A program that does not use this crate can still bind the port.
///
/// # Examples
///
/// ```
/// let port = leasehold_testkit::Port::reserve()?;
/// let listener = std::net::TcpListener::bind(("127.0.0.1", port.number()))?;
/// # drop(listener); Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Port {
    number: u16,
    _marker: UdpSocket,
}

impl Port {
    /// Reserves a port.
    ///
    /// # Errors
    ///
    /// If no port is free.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let port = leasehold_testkit::Port::reserve()?; // until it is dropped
    /// println!("listen on {}", port.number());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn reserve() -> Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Processes start at different ports.
        let start = std::process::id().wrapping_mul(61);
        for _ in 0..COUNT {
            let next = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
            let offset = u16::try_from(next % u32::from(COUNT)).unwrap_or_default();
            let address = (Ipv4Addr::LOCALHOST, FIRST + offset);
            let Ok(marker) = UdpSocket::bind(address) else {
                continue;
            };
            if TcpListener::bind(address).is_ok() {
                return Ok(Self {
                    number: address.1,
                    _marker: marker,
                });
            }
        }
        let end = FIRST + COUNT - 1;
        let text = format!("no free port from {FIRST} to {end}");
        Err(Error::new(ErrorKind::AddrInUse, text))
    }

    /// Returns the number of the port.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// let port = leasehold_testkit::Port::reserve()?;
    /// let address = format!("127.0.0.1:{}", port.number());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }
}
