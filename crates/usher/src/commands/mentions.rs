//! Where the policy has a user's name as a word.

use std::collections::BTreeSet;

use usher_base::UserName;
use usher_policy::Place;

use super::configuration;
use super::removal::Remains;

/// The other places of the written policy where the user's name stands as a word: an account, a rule of a
/// module, or another thing of that name.
pub(super) fn mentions(user: &UserName, known: &[Remains]) -> Vec<Remains> {
    let Ok(written) = configuration::collect() else {
        return Vec::new();
    };
    let places = written.sources.iter().flat_map(|source| {
        let lines = lines_with_word(&source.text, user.as_ref());
        lines.map(|(line, column, text)| Remains {
            place: Some(Place {
                file: source.name.clone(),
                line,
                column,
            }),
            text: format!("the word {user} stands here: {text}"),
        })
    });
    let on_line = |remains: &Remains| {
        let place = remains.place.as_ref();
        place.map(|place| (place.file.clone(), place.line))
    };
    let known: BTreeSet<_> = known.iter().map(on_line).collect();
    places
        .filter(|found| !known.contains(&on_line(found)))
        .collect()
}

/// The lines of a policy that have a word outside of quotes and comments: line and column, from 1, and the line.
fn lines_with_word<'t>(
    text: &'t str,
    word: &'t str,
) -> impl Iterator<Item = (usize, usize, &'t str)> {
    let is_part = |next: char| next.is_alphanumeric() || "_.-@/".contains(next);
    text.lines().zip(1..).filter_map(move |(line, number)| {
        let mut quoted = false;
        let mut before = None;
        for (place, next) in line.char_indices() {
            match next {
                '"' => quoted = !quoted,
                '#' if !quoted => return None,
                _ if quoted || before.is_some_and(is_part) => {}
                _ if line[place..]
                    .strip_prefix(word)
                    .is_some_and(|rest| !rest.starts_with(is_part)) =>
                {
                    let column = line[..place].chars().count() + 1;
                    return Some((number, column, line.trim()));
                }
                _ => {}
            }
            before = Some(next);
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_as_a_word_of_the_policy_only() {
        let policy = "users mail { member alice; member alice2, malice; } # alice\n\
            # alice\n\
            \u{fc} { account alice; }\n\
            service s { program \"/home/alice/x\" \"alice\"; users alice@corp, x/alice; }\n\
            mac portacl { permit user bob,alice tcp 80; }\n";
        let found: Vec<_> = lines_with_word(policy, "alice").collect();
        let lines: Vec<&str> = policy.lines().collect();
        let expected = [(1, 21, lines[0]), (3, 13, lines[2]), (5, 31, lines[4])];
        assert_eq!(found, expected);
    }
}
