//! "Did you mean": the nearest of a few words.

use strsim::osa_distance;

/// The candidate that a slip of the fingers most likely meant, or none when no candidate is near
/// enough (a third of the word's letters, at least one, at most three). Letter case does not count.
pub fn nearest<'a>(found: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<String> {
    // Longer than any keyword or name can be: not a slip, and not worth the work.
    if found.len() > 64 {
        return None;
    }
    let limit = (found.chars().count() / 3).clamp(1, 3);
    let lowercase = found.to_lowercase();
    candidates
        .into_iter()
        .filter(|candidate| candidate.len().abs_diff(found.len()) <= limit * 4)
        .map(|candidate| {
            (
                osa_distance(&lowercase, &candidate.to_lowercase()),
                candidate,
            )
        })
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate.to_owned())
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
        assert_eq!(osa_distance("abcd", "abcd"), 0);
        assert_eq!(osa_distance("abcd", "abd"), 1);
        assert_eq!(osa_distance("abcd", "acbd"), 1);
        assert_eq!(osa_distance("abcd", "axcd"), 1);
        assert_eq!(osa_distance("", "abc"), 3);
    }
}
