//! Follows a slow request to the holder's trace.
//!
//! Two processes want one lock. Each has its own trace. The waiter's span
//! `leasehold.wait` carries an OpenTelemetry *link* to the holder's trace.
//! Start a server, then run both commands, each in its own terminal:
//!
//! ```sh
//! cargo run -- hold
//! cargo run -- wait
//! ```
//!
//! Each process prints its finished spans. A service would export them with
//! OTLP instead of the in-memory exporter.

use std::collections::HashMap;
use std::time::Duration;

use leasehold::observe::Event;
use leasehold::{Client, Error};
use opentelemetry::Context;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{SpanContext, TraceContextExt, TracerProvider};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use tracing::{Instrument, Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Links a waiter's span to the holder's trace.
fn link_to_holder(event: &Event<'_>) {
    let Event::WaitStarted { holder, .. } = event else {
        return;
    };
    let parent = holder.and_then(|holder| holder.trace_parent.as_ref());
    if let Some(parent) = parent {
        // The current span is `leasehold.wait`.
        Span::current().add_link(span_context(parent));
    }
}

/// Reads a W3C `traceparent`.
fn span_context(parent: &str) -> SpanContext {
    let carrier = HashMap::from([("traceparent".to_owned(), parent.to_owned())]);
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &carrier);
    context.span().span_context().clone()
}

/// Returns the current span as a W3C `traceparent`.
fn current_trace_parent() -> Option<String> {
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&Span::current().context(), &mut carrier);
    carrier.remove("traceparent")
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let exporter = InMemorySpanExporter::default();
    let provider = SdkTracerProvider::builder()
        .with_simple_exporter(exporter.clone())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("otel"));
    tracing_subscriber::registry().with(layer).init();

    let url = std::env::var("LEASEHOLD_URL").unwrap_or("redis://127.0.0.1/".to_owned());
    let client = Client::connect(&url)
        .observe(link_to_holder)
        .trace_parent(current_trace_parent)
        .await?;
    let hold = match std::env::args().nth(1).as_deref() {
        Some("hold") => Duration::from_secs(5),
        Some("wait") => Duration::ZERO,
        _ => panic!("the argument must be `hold` or `wait`"),
    };
    let work = client.mutex("report").run(|_lease| async move {
        println!("holding");
        tokio::time::sleep(hold).await;
    });
    work.instrument(info_span!("request")).await?;
    client.shutdown(Duration::from_secs(5)).await?;

    for span in exporter.get_finished_spans().unwrap_or_default() {
        let trace = span.span_context.trace_id();
        println!("span {} in trace {trace}", span.name);
        for link in span.links.iter() {
            println!("  links to trace {}", link.span_context.trace_id());
        }
    }
    Ok(())
}
