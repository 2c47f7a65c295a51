//! Durations as people write and read them: `90`, `1.5s`, `200ms`, `5m`, `2h`, `1d`.

use std::time::{Duration, SystemTime};

/// Reads what a person wrote; a number alone is seconds.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, unit) = text.split_at(digits.unwrap_or(text.len()));
    let seconds_each = match unit {
        "ms" => 0.001,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(format!("`{unit}` is none of ms, s, m, h, d")),
    };
    let number: f64 = number
        .parse()
        .map_err(|_| "write it as 10, 1.5s, 200ms, 5m, 2h or 1d".to_owned())?;
    Duration::try_from_secs_f64(number * seconds_each).map_err(|_| "that is too long".to_owned())
}

/// Writes it in at most two units, as in `3m20s`.
pub(crate) fn show(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..10 => format!("{:.1}s", duration.as_secs_f64()),
        10..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

/// How long ago, by our own clock; nothing when it is said to be in the future.
pub(crate) fn ago(moment: SystemTime) -> Duration {
    moment.elapsed().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write_is_understood() {
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
    fn what_is_shown_is_short() {
        for (millis, text) in [
            (1234, "1.2s"),
            (59_000, "59s"),
            (200_000, "3m20s"),
            (7_260_000, "2h01m"),
            (90_000_000, "1d01h"),
        ] {
            assert_eq!(show(Duration::from_millis(millis)), text);
        }
    }
}
