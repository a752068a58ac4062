//! Texts of a policy in messages.

/// Text of the policy made fit for a terminal: on one line, short, nothing invisible.
pub(crate) fn shown(text: &str) -> String {
    shown_up_to(60, text)
}

/// The same of at most so many characters.
pub(crate) fn shown_up_to(longest: usize, text: &str) -> String {
    let mut shown: String = text
        .chars()
        .take(longest)
        .flat_map(|character| {
            let plain = character.is_ascii_graphic() || character == ' ' || {
                character.is_alphanumeric() && !character.is_ascii()
            };
            let escaped = (!plain).then(|| character.escape_default());
            escaped
                .into_iter()
                .flatten()
                .chain(plain.then_some(character))
        })
        .collect();
    if text.chars().nth(longest).is_some() {
        shown.push_str("...");
    }
    shown
}
