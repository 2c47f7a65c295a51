//! `leasehold export`: the state of locks as metrics for Prometheus, printed
//! once or served over HTTP.

mod http;
mod inspection;
mod scrape;
mod text;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use leasehold::Error;
use tokio::net::TcpListener;

use crate::args::{ExportArgs, ServerArgs};
use crate::exit;
use crate::output::{CliError, message, print};
use crate::settings::Settings;
use crate::signals::Signals;
use inspection::{Inspection, Selection};
use scrape::Scraper;

pub(crate) async fn export(server: &ServerArgs, args: &ExportArgs) -> Result<u8, CliError> {
    let settings = Settings::load(server)?;
    let selection = Selection {
        names: BTreeSet::from_iter(args.lock.iter().cloned()),
        skip_foreign: settings.has_empty_prefix(),
    };
    match args.listen {
        Some(address) => listen(address, settings, selection).await,
        None => print_once(&settings, &selection).await,
    }
}

/// Prints all metrics, or nothing if the server cannot be inspected.
async fn print_once(settings: &Settings, selection: &Selection) -> Result<u8, CliError> {
    let client = settings.connect(None).await?;
    let start = Instant::now();
    let inspection = Inspection::take(&client, selection).await?;
    for (name, error) in &inspection.failed {
        message(failed_lock(name, error));
    }
    print(&text::metrics(&inspection, start.elapsed()))?;
    Ok(exit::OK)
}

/// Describes a lock that cannot be inspected, while others can.
fn failed_lock(name: &str, error: &Error) -> String {
    format!("cannot inspect `{name}`: {error}")
}

/// Serves metrics until a signal arrives.
async fn listen(
    address: SocketAddr,
    settings: Settings,
    selection: Selection,
) -> Result<u8, CliError> {
    let mut signals = Signals::new()?;
    let failed = |error| CliError::usage(format!("cannot listen on {address}: {error}"));
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let serving = async {
        let scraper = Scraper::new(settings, selection).await?;
        message(format!("serving http://{address}/metrics"));
        match http::serve(&listener, Arc::new(scraper)).await {}
    };
    tokio::select! {
        outcome = serving => outcome,
        signal = signals.termination() => Ok(exit::by_signal(signal as i32)),
    }
}
