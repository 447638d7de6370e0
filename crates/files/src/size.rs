//! Numbers of bytes for people, in one unit everywhere.

/// Bytes in the largest binary unit that leaves a whole part: `1.10 GiB`, `626.2 MiB`, `75.0 KiB`, `12 B`.
#[must_use]
pub fn for_people(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::for_people;

    #[test]
    fn units_change_at_powers_of_1024() {
        let said = [0, 1023, 1024, 1_048_576, 1_073_741_824, 1_183_186_848].map(for_people);
        assert_eq!(said, ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.00 GiB", "1.10 GiB"]);
    }
}
