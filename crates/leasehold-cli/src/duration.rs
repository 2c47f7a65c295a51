//! Parsing and formatting of durations: `90`, `1.5s`, `200ms`, `5m`, `2h`,
//! `1d`; and of the time of day.

use std::time::{Duration, SystemTime};

/// Parses a duration. A number without a unit is in seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let seconds_per_unit = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(format!("unknown unit `{unit}`; expected ms, s, m, h or d")),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| "expected a duration as in 10, 1.5s, 200ms, 5m, 2h or 1d".to_owned())?;
    Duration::try_from_secs_f64(number * seconds_per_unit)
        .map_err(|_| "the duration is too long".to_owned())
}

/// Formats a duration in at most two units, as in `3m20s`.
pub(crate) fn format(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1}s", duration.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// Returns the time since `time` by the local clock, or zero for a time in the
/// future.
pub(crate) fn since(time: SystemTime) -> Duration {
    time.elapsed().unwrap_or_default()
}

/// Formats the time of day in UTC, as in `14:03:20Z`.
pub(crate) fn time_of_day(time: SystemTime) -> String {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since_epoch.unwrap_or_default().as_secs() % 86_400;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}Z", seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_accepts_all_units() {
        for (text, millis) in [
            ("10", 10_000),
            ("1.5s", 1500),
            ("200ms", 200),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("1d", 86_400_000),
            ("0", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "s", "-1", "5x", "1.2.3", "99999999999999999999d"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn format_uses_at_most_two_units() {
        for (millis, text) in [
            (1234, "1.2s"),
            (59_000, "59s"),
            (200_000, "3m20s"),
            (7_260_000, "2h01m"),
            (90_000_000, "1d01h"),
        ] {
            assert_eq!(format(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn time_of_day_is_in_utc() {
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_763_042_600);
        assert_eq!(time_of_day(time), "14:03:20Z");
    }
}
