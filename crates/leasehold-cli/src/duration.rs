//! Parsing and formatting of durations: `90`, `1.5s`, `200ms`, `5m`, `2h`,
//! `1d`; and of times.

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

/// Formats a duration in one unit, without rounding: `90m`, `1d`.
pub(crate) fn exact(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1000, "s"),
    ];
    let divides = |(size, _): &&(u128, &str)| millis > 0 && millis.is_multiple_of(*size);
    match units.iter().find(divides) {
        Some((size, unit)) => format!("{}{unit}", millis / size),
        None => format!("{millis}ms"),
    }
}

/// Formats a time in UTC, as in `2025-11-13 14:03:20Z`.
pub(crate) fn date_time(time: SystemTime) -> String {
    let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH);
    let seconds = since_epoch.unwrap_or_default().as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let hour = seconds / 3600 % 24;
    let minute = seconds / 60 % 60;
    let second = seconds % 60;
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}Z")
}

/// Returns year, month and day of a number of days since 1970, in the Gregorian
/// calendar.
fn date(days: u64) -> (u64, u64, u64) {
    // Years that begin on 1 March end with the leap day. 719,468 days lie
    // between 1 March of year 0 and 1970; 400 years have 146,097 days.
    let days = days + 719_468;
    let cycle = days / 146_097;
    let in_cycle = days % 146_097;
    let year = (in_cycle - in_cycle / 1460 + in_cycle / 36_524 - in_cycle / 146_096) / 365;
    let in_year = in_cycle - (365 * year + year / 4 - year / 100);
    // Five months from March have 153 days, as the next five.
    let from_march = (5 * in_year + 2) / 153;
    let day = in_year - (153 * from_march + 2) / 5 + 1;
    let month = match from_march {
        0..10 => from_march + 3,
        _ => from_march - 9,
    };
    let year = cycle * 400 + year + u64::from(month <= 2);
    (year, month, day)
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
    fn exact_rounds_nothing() {
        for (millis, text) in [
            (86_400_000, "1d"),
            (5_400_000, "90m"),
            (1500, "1500ms"),
            (0, "0ms"),
        ] {
            assert_eq!(exact(Duration::from_millis(millis)), text);
        }
    }

    /// Compares with `date --utc`.
    #[test]
    fn date_time_is_in_utc() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00Z"),
            (951_782_399, "2000-02-28 23:59:59Z"),
            (951_782_400, "2000-02-29 00:00:00Z"),
            (951_868_800, "2000-03-01 00:00:00Z"),
            (1_735_689_599, "2024-12-31 23:59:59Z"),
            (1_763_042_600, "2025-11-13 14:03:20Z"),
            (4_107_542_400, "2100-03-01 00:00:00Z"),
        ] {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(date_time(time), text);
        }
    }
}
