//! "Did you mean": the nearest of a few words.

/// The candidate that a slip of the fingers most likely meant, or none when no candidate is near
/// enough (a third of the word's letters, at least one, at most three).
pub fn nearest<'a>(found: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    // Longer than any keyword or name can be: not a slip, and not worth the work.
    if found.len() > 64 {
        return None;
    }
    let limit = (found.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .filter(|candidate| candidate.len().abs_diff(found.len()) <= limit * 4)
        .map(|candidate| (distance(found, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate.to_owned())
}

/// Optimal string alignment distance: insertions, deletions, substitutions, and transpositions of
/// neighbours; letter case does not count.
fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.to_lowercase().chars().collect();
    let right: Vec<char> = right.to_lowercase().chars().collect();
    let mut two_above = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    for row in 1..=left.len() {
        let mut current = vec![row];
        for column in 1..=right.len() {
            let substitution = usize::from(left[row - 1] != right[column - 1]);
            let mut cost = (above[column] + 1)
                .min(current[column - 1] + 1)
                .min(above[column - 1] + substitution);
            if row > 1
                && column > 1
                && left[row - 1] == right[column - 2]
                && left[row - 2] == right[column - 1]
            {
                cost = cost.min(two_above[column - 2] + 1);
            }
            current.push(cost);
        }
        two_above = std::mem::replace(&mut above, current);
    }
    above[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_word_that_was_meant() {
        let words = ["listen", "style", "session", "hosts"];
        assert_eq!(nearest("lisen", words), Some("listen".to_owned()));
        assert_eq!(nearest("lsiten", words), Some("listen".to_owned()));
        assert_eq!(nearest("HOSTS", words), Some("hosts".to_owned()));
        assert_eq!(nearest("frobnicate", words), None);
        assert_eq!(nearest("", words), None);
    }

    #[test]
    fn counts_single_slips_as_one() {
        assert_eq!(distance("abcd", "abcd"), 0);
        assert_eq!(distance("abcd", "abd"), 1);
        assert_eq!(distance("abcd", "acbd"), 1);
        assert_eq!(distance("abcd", "axcd"), 1);
        assert_eq!(distance("", "abc"), 3);
    }
}
