//! The rules and queries of `contrib`, evaluated by Prometheus' own engine.

use std::path::Path;

use serde_json::{Value, json};
use testkit::tool;

use crate::harness::Harness;

fn contrib(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../contrib")
        .join(path)
}

/// Runs a file of tests with `promtool`.
#[track_caller]
fn run_tests(file: &Path) {
    let Some(mut promtool) = tool("promtool") else {
        return;
    };
    let output = promtool.args(["test", "rules"]).arg(file).output().unwrap();
    let problems =
        String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{problems}");
}

#[test]
fn alerts_fire_at_the_default_scrape_interval() {
    run_tests(&contrib("prometheus/alerts_test.yml"));
}

/// Returns the query of a panel, for all jobs and locks.
fn query(title: &str) -> String {
    let text = std::fs::read_to_string(contrib("grafana/leasehold.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let panel = panels.iter().find(|panel| panel["title"] == title);
    let query = panel.unwrap()["targets"][0]["expr"].as_str().unwrap();
    query.replace("$job", ".*").replace("$lock", ".*")
}

#[test]
fn panels_show_what_their_titles_say() {
    let harness = Harness::new();
    let dead = query("Dead holders");
    let is = |query: &str, labels: &str, value: u32| {
        let sample = json!({"labels": labels, "value": value});
        json!([{"expr": query, "eval_time": "50m", "exp_samples": [sample]}])
    };
    let series = |series: &str, values: &str| json!([{"series": series, "values": values}]);
    let test = |input: Value, expected: Value| json!({"interval": "1m", "input_series": input, "promql_expr_test": expected});
    let other_dead = r#"leasehold_other_lock_disconnected_holders{kind="mutex"}"#;
    let named_dead = r#"leasehold_lock_disconnected_holders{lock="a"}"#;
    let tests = [
        test(series(other_dead, "3x90"), is(&dead, "{}", 3)),
        test(series(named_dead, "2x90"), is(&dead, "{}", 2)),
        // A lock that is held for longer than the range of the query.
        test(
            series(r#"leasehold_held{job="j",lock="a"}"#, "1x90"),
            is(&query("Utilisation"), r#"{lock="a"}"#, 1),
        ),
    ];
    // JSON is YAML.
    let file = harness.path("panels.yml");
    std::fs::write(&file, json!({"tests": tests}).to_string()).unwrap();
    run_tests(&file);
}
