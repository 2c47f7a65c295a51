//! Asking sentinels which server is the master now.
//!
//! They are asked for every connection, and once a second while there is one, so that a server that was
//! demoted behind a broken network is left too.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use super::address::Hosts;
use super::connection::{Connection, Endpoint, Role, Tls};
use super::reply::{Cause, Failure, Reply};

/// The sentinels of one group of servers.
pub(crate) struct Sentinels {
    /// The name that they know the group by.
    group: String,
    /// A member of the group: all share credentials, TLS and database, and differ in their address.
    member: Endpoint,
    connect_timeout: Duration,
    /// Who was heard last is asked first.
    asked: Mutex<Asked>,
}

struct Asked {
    sentinels: Vec<Endpoint>,
    connection: Option<Arc<Connection>>,
}

impl Sentinels {
    /// Understands `redis+sentinel://user:password@host:port,host:port/GROUP/DATABASE`, with the
    /// sentinels' own credentials as `?sentinel_username=…&sentinel_password=…`. `None` when `url` is
    /// of another scheme.
    pub(super) fn new(
        url: &str,
        tls: &Tls,
        connect_timeout: Duration,
    ) -> Option<Result<Arc<Self>, Cause>> {
        let (scheme, rest) = url.split_once("+sentinel://")?;
        let address = Address::parse(scheme, rest);
        let sentinels = address.and_then(|address| {
            let endpoint = |url: &String| Endpoint::new(url, tls, connect_timeout);
            Ok(Arc::new(Self {
                group: address.group,
                member: endpoint(&address.member)?,
                connect_timeout,
                asked: Mutex::new(Asked {
                    sentinels: address
                        .sentinels
                        .iter()
                        .map(endpoint)
                        .collect::<Result<_, _>>()?,
                    connection: None,
                }),
            }))
        });
        Some(sentinels)
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// The server that the sentinels say is the master.
    pub(super) async fn master(&self) -> Result<Endpoint, Failure> {
        let group = &self.group;
        match self.ask(&["GET-MASTER-ADDR-BY-NAME", group]).await? {
            Reply::Nil => Err(Failure::Unreachable(
                format!("the sentinels know no group `{group}`").into(),
            )),
            reply => match address(&reply) {
                Some((host, port)) => Ok(self.member.at(host, port)),
                None => Err(Failure::malformed("SENTINEL", &[reply])),
            },
        }
    }

    /// How many replicas they know of, up or down.
    pub(super) async fn replicas(&self) -> Result<u32, Failure> {
        let reply = self.ask(&["MASTER", &self.group]).await?;
        let count = reply.field("num-slaves").and_then(Reply::int);
        let count = count.and_then(|count| u32::try_from(count).ok());
        count.ok_or_else(|| Failure::malformed("SENTINEL", std::slice::from_ref(&reply)))
    }

    /// Asks whoever was heard last, then the others, until one answers.
    async fn ask(&self, question: &[&str]) -> Result<Reply, Failure> {
        let mut asked = self.asked.lock().await;
        if let Some(connection) = asked.connection.take()
            && let Ok(reply) = self.ask_one(&connection, question).await
        {
            asked.connection = Some(connection);
            return Ok(reply);
        }
        let mut failure = Failure::Unreachable("no sentinel is named".into());
        for _ in 0..asked.sentinels.len() {
            let answered = async {
                let connection = self.connect(&asked.sentinels[0]).await?;
                let reply = self.ask_one(&connection, question).await?;
                Ok((reply, connection))
            };
            match answered.await {
                Ok((reply, connection)) => {
                    asked.connection = Some(connection);
                    return Ok(reply);
                }
                Err(why) => failure = why,
            }
            asked.sentinels.rotate_left(1);
        }
        Err(failure)
    }

    async fn connect(&self, sentinel: &Endpoint) -> Result<Arc<Connection>, Failure> {
        let name = "leasehold-sentinel";
        let connecting = Connection::connect(sentinel, name, Role::Sentinel, |_, _| ());
        match tokio::time::timeout(self.patience(), connecting).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(failure)) => Err(unreachable(sentinel, &failure)),
            Err(_) => Err(unreachable(sentinel, &"no reply")),
        }
    }

    async fn ask_one(&self, connection: &Connection, question: &[&str]) -> Result<Reply, Failure> {
        let words: Vec<_> = [&["SENTINEL"], question].concat();
        connection.question(&words, self.patience()).await
    }

    /// Of one sentinel, so that one that is silent leaves time for another.
    fn patience(&self) -> Duration {
        self.connect_timeout / 2
    }
}

fn address(reply: &Reply) -> Option<(&str, u16)> {
    match reply.list()? {
        [host, port] => Some((host.text()?, port.text()?.parse().ok()?)),
        _ => None,
    }
}

fn unreachable(sentinel: &Endpoint, why: &dyn std::fmt::Display) -> Failure {
    Failure::Unreachable(format!("sentinel {sentinel:?}: {why}").into())
}

/// The parts of a sentinel URL, each as a URL of its own.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    group: String,
    member: String,
    sentinels: Vec<String>,
}

impl Address {
    fn parse(scheme: &str, rest: &str) -> Result<Self, Cause> {
        const FORM: &str =
            "it looks like `redis+sentinel://user:password@host:26379,host:26379/group/0`";
        let hosts = Hosts::parse(scheme, rest).ok_or(FORM)?;
        hosts.check_settings(&["sentinel_username", "sentinel_password"])?;
        let (group, database) = hosts.path.split_once('/').unwrap_or((hosts.path, ""));
        if group.is_empty() {
            return Err(FORM.into());
        }
        let own = match (
            hosts.setting("sentinel_username"),
            hosts.setting("sentinel_password"),
        ) {
            ("", "") => String::new(),
            (user, password) => format!("{user}:{password}@"),
        };
        Ok(Self {
            group: group.to_owned(),
            // Its address is replaced by what the sentinels say.
            member: hosts.any(database),
            sentinels: hosts.urls(&own, 26379),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_sentinels_group_and_credentials_of_both() {
        let address = Address::parse(
            "rediss",
            "user:secret@one:26380,two,[::1]/group/3?sentinel_username=s&sentinel_password=p",
        );
        assert_eq!(
            address.unwrap(),
            Address {
                group: "group".to_owned(),
                member: "rediss://user:secret@127.0.0.1:6379/3".to_owned(),
                sentinels: ["one:26380", "two:26379", "[::1]:26379"]
                    .map(|host| format!("rediss://s:p@{host}/"))
                    .to_vec(),
            }
        );
    }

    #[test]
    fn a_bad_url_is_refused_without_repeating_it() {
        for rest in [
            "u:secret@host",
            "u:secret@host/",
            "u:secret@/group",
            "u:secret@host/group?secret=1",
        ] {
            let error = Address::parse("redis", rest).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
