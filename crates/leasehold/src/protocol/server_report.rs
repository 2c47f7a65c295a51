//! What a server reports about itself: `INFO`, settings, its clock.

use super::call::Call;
use crate::backend::{Batch, Reply};

/// The replies by name. Replies that the user may not read are missing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// Lines of `INFO`, as `name:value`.
    info: String,
    /// Names and values of settings.
    settings: Vec<(String, String)>,
}

impl Report {
    /// Returns the value of a line of `INFO`.
    pub(crate) fn info(&self, name: &str) -> Option<&str> {
        self.info.lines().find_map(|line| {
            let (at, value) = line.split_once(':')?;
            (at == name).then(|| value.trim())
        })
    }

    /// Returns the value of a setting.
    pub(crate) fn setting(&self, name: &str) -> Option<&str> {
        let found = self.settings.iter().find(|(at, _)| at == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// Reads a report, leaving out what the server refuses.
pub(crate) fn report() -> Call<Report> {
    let settings = ["min-replicas-to-write", "save", "appendonly", "appendfsync"];
    let settings = settings.map(|name| Batch::new("CONFIG").arg("GET").arg(name));
    let info = Batch::new("INFO");
    let commands = settings.into_iter().fold(info, Batch::and);
    Call::new(commands, |replies| {
        let mut replies = replies.iter();
        let info = replies.next().and_then(Reply::text);
        // Servers refuse settings that they do not have, and users may lack the
        // permission.
        let pair = |reply: &Reply| match reply.list()? {
            [name, value] => Some((name.text()?.to_owned(), value.text()?.to_owned())),
            _ => None,
        };
        Ok(Report {
            info: info.unwrap_or_default().to_owned(),
            settings: replies.filter_map(pair).collect(),
        })
    })
}

/// Reads the server's clock, in microseconds since 1970.
pub(crate) fn clock() -> Call<Option<u64>> {
    Call::new(Batch::new("TIME"), |replies| {
        Ok(replies.first().and_then(Reply::time))
    })
}
