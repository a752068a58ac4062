//! One content line: a property with its parameters (RFC 5545, section 3.1).

/// A property: `NAME;PARAMETER=VALUE:VALUE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Property {
    /// In capital letters.
    pub name: String,
    /// Names in capital letters, values without quotes.
    pub parameters: Vec<(String, String)>,
    /// The raw value, including escapes.
    pub value: String,
}

impl Property {
    pub(super) fn parse(line: &str) -> Option<Self> {
        let name_length = line.find([';', ':'])?;
        let (name, mut rest) = line.split_at(name_length);
        if !is_name(name) {
            return None;
        }
        let mut parameters = Vec::new();
        while let Some(parameter) = rest.strip_prefix(';') {
            let (name, value) = parameter.split_once('=')?;
            if !is_name(name) {
                return None;
            }
            let length = parameter_value_length(value)?;
            let (value, after) = value.split_at(length);
            parameters.push((name.to_ascii_uppercase(), value.replace('"', "")));
            rest = after;
        }
        Some(Self {
            name: name.to_ascii_uppercase(),
            parameters,
            value: rest.strip_prefix(':')?.to_owned(),
        })
    }

    /// A parameter's value; the first, if several have the name.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.parameters.iter().find(|(key, _)| key == name)?;
        Some(&found.1)
    }

    /// The value of a property of type TEXT, with its escapes resolved (RFC 5545, section 3.3.11).
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(self.value.len());
        let mut characters = self.value.chars();
        while let Some(character) = characters.next() {
            match character {
                '\\' => match characters.next() {
                    Some('n' | 'N') => text.push('\n'),
                    Some(other) => text.push(other),
                    None => text.push('\\'),
                },
                other => text.push(other),
            }
        }
        text
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Reads up to the terminating `;` or `:`; between quotes both are part of the value.
fn parameter_value_length(text: &str) -> Option<usize> {
    let mut quoted = false;
    text.bytes().position(|byte| {
        quoted ^= byte == b'"';
        !quoted && matches!(byte, b';' | b':')
    })
}
