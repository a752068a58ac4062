//! Statements that a module from a file declares, and the settings that they set.

use std::ops::RangeInclusive;

use usher_bpf::Plain;

use crate::shared::{
    MAC_MOST_SETTINGS, MAC_MOST_STATEMENTS, MAC_VALUE_GROUP, MAC_VALUE_NUMBER, MAC_VALUE_SWITCH,
    MAC_VALUE_USER, MacStatement, is_module_name, text,
};

/// A statement of a module's block in the policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// The word that begins it.
    pub keyword: String,
    /// The meaning of its values.
    pub values: StatementValues,
    /// The limit of values; none where it has exactly one.
    pub list: Option<usize>,
    default: u32,
    place: usize,
    count_place: usize,
}

/// The meaning of a statement's values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatementValues {
    /// Decimal numbers.
    Numbers(RangeInclusive<u32>),
    /// `yes` is 1, `no` is 0.
    Switch,
    /// Users, by name or number.
    Users,
    /// Groups, by name or number.
    Groups,
}

/// A reason that statements cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoStatements {
    /// Other bytes than the macros make.
    #[error("they are not made by MAC_STATEMENTS of usher_mac_policy.h")]
    Unreadable,
    /// Too many, or none.
    #[error("there are {0}, and a module has 1 to {MAC_MOST_STATEMENTS}")]
    Count(usize),
    /// Settings that are too large.
    #[error("the settings have {0} bytes, more than {MAC_MOST_SETTINGS}")]
    Size(u32),
    /// No keyword.
    #[error(
        "`{0}` cannot be a statement's keyword: a keyword has small letters, digits and `_`, begins with a \
         letter, and has at most 31 characters"
    )]
    Keyword(String),
    /// A keyword twice.
    #[error("two statements begin with `{0}`")]
    Twice(String),
    /// A default, or a range, that no value can have.
    #[error(
        "the default of `{0}` is not one of its values, or its lowest number is above its highest"
    )]
    Values(String),
}

impl Statement {
    /// Reads the section with a module's statements. Returns them, and the size of the settings in bytes.
    pub(crate) fn read(bytes: &[u8]) -> Result<(Vec<Self>, usize), NoStatements> {
        let entries = bytes.chunks_exact(size_of::<MacStatement>());
        let is_whole = entries.remainder().is_empty();
        let read: Option<Vec<MacStatement>> = entries.map(MacStatement::read).collect();
        let read = read.filter(|_| is_whole).ok_or(NoStatements::Unreadable)?;
        let Some(first) = read
            .first()
            .filter(|_| read.len() <= MAC_MOST_STATEMENTS as usize)
        else {
            return Err(NoStatements::Count(read.len()));
        };
        let size = first.size;
        if size > MAC_MOST_SETTINGS {
            return Err(NoStatements::Size(size));
        }
        let mut statements: Vec<Self> = Vec::new();
        for entry in &read {
            let one = Self::one(entry, size)?;
            if statements.iter().any(|other| other.keyword == one.keyword) {
                return Err(NoStatements::Twice(one.keyword));
            }
            statements.push(one);
        }
        Ok((statements, size as usize))
    }

    fn one(entry: &MacStatement, size: u32) -> Result<Self, NoStatements> {
        let keyword = text(&entry.keyword).ok_or(NoStatements::Unreadable)?;
        if !is_module_name(&keyword) {
            return Err(NoStatements::Keyword(keyword));
        }
        let ends = |offset: u32, words: u32| words.checked_mul(4)?.checked_add(offset);
        let is_inside = |offset: u32, words: u32| {
            offset.is_multiple_of(4) && ends(offset, words).is_some_and(|end| end <= size)
        };
        let is_list = entry.is_list == 1;
        let is_sound = entry.size == size
            && entry.is_list <= 1
            && entry.reserved == 0
            && (is_list || entry.limit == 1)
            && entry.limit > 0
            && is_inside(entry.offset, entry.limit)
            && (!is_list || is_inside(entry.count_offset, 1));
        let values = match entry.kind {
            MAC_VALUE_NUMBER => StatementValues::Numbers(entry.least..=entry.most),
            MAC_VALUE_SWITCH => StatementValues::Switch,
            MAC_VALUE_USER => StatementValues::Users,
            MAC_VALUE_GROUP => StatementValues::Groups,
            _ => return Err(NoStatements::Unreadable),
        };
        if !is_sound {
            return Err(NoStatements::Unreadable);
        }
        let has_default = match &values {
            StatementValues::Numbers(range) if is_list => !range.is_empty(),
            StatementValues::Numbers(range) => range.contains(&entry.by_default),
            StatementValues::Switch => entry.by_default <= 1,
            StatementValues::Users | StatementValues::Groups => true,
        };
        if !has_default {
            return Err(NoStatements::Values(keyword));
        }
        Ok(Self {
            keyword,
            values,
            list: is_list.then_some(entry.limit as usize),
            default: entry.by_default,
            place: entry.offset as usize,
            count_place: entry.count_offset as usize,
        })
    }
}

/// The settings of a module from a file, as it reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredSettings {
    module: String,
    bytes: Vec<u8>,
}

impl DeclaredSettings {
    /// The settings of a module about which the policy says nothing. `size` is that of its structure, in bytes.
    pub(crate) fn new(module: &str, statements: &[Statement], size: usize) -> Self {
        let mut settings = Self {
            module: module.to_owned(),
            bytes: vec![0; size],
        };
        for statement in statements.iter().filter(|one| one.list.is_none()) {
            settings.write(statement.place, statement.default);
        }
        settings
    }

    /// Sets the values that a statement of this module has in the policy. Each must be a value that the
    /// statement takes. Values beyond its limit are left out.
    pub fn set(&mut self, statement: &Statement, values: &[u32]) {
        let taken = values.len().min(statement.list.unwrap_or(1));
        for (number, value) in values[..taken].iter().enumerate() {
            self.write(statement.place + number * size_of::<u32>(), *value);
        }
        if statement.list.is_some() {
            // At most the limit, which is a u32.
            self.write(statement.count_place, taken as u32);
        }
    }

    fn write(&mut self, place: usize, value: u32) {
        self.bytes[place..place + size_of::<u32>()].copy_from_slice(&value.to_ne_bytes());
    }

    /// The module.
    #[must_use]
    pub fn module(&self) -> &str {
        &self.module
    }

    /// The bytes that the module reads.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use usher_bpf::zerocopy::IntoBytes;

    use super::*;

    fn entry(keyword: &str) -> MacStatement {
        let mut entry = MacStatement::zeroed();
        entry.keyword[..keyword.len()].copy_from_slice(keyword.as_bytes());
        entry.kind = MAC_VALUE_NUMBER;
        (entry.size, entry.offset, entry.limit, entry.most) = (72, 68, 1, 9);
        entry
    }

    fn list(keyword: &str) -> MacStatement {
        let mut entry = entry(keyword);
        entry.kind = MAC_VALUE_USER;
        (entry.offset, entry.limit, entry.is_list) = (4, 16, 1);
        entry
    }

    fn read(entries: &[MacStatement]) -> Result<(Vec<Statement>, usize), NoStatements> {
        let bytes: Vec<u8> = entries
            .iter()
            .flat_map(|one| one.as_bytes().to_vec())
            .collect();
        Statement::read(&bytes)
    }

    #[test]
    fn statements_set_members_of_the_settings() {
        let mut number = entry("most");
        number.by_default = 7;
        let (statements, size) = read(&[list("exempt"), number]).unwrap();
        assert_eq!(size, 72);
        let mut settings = DeclaredSettings::new("sample", &statements, size);
        let words = |settings: &DeclaredSettings| -> Vec<u32> {
            let words = settings.bytes.chunks_exact(4);
            words
                .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
                .collect()
        };
        assert_eq!(words(&settings)[..3], [0, 0, 0]);
        assert_eq!(words(&settings)[17], 7);
        settings.set(&statements[0], &[1001, 1002]);
        settings.set(&statements[1], &[3]);
        assert_eq!(words(&settings)[..4], [2, 1001, 1002, 0]);
        assert_eq!(words(&settings)[17], 3);
        // No more than there is room for.
        settings.set(&statements[0], &[5; 40]);
        assert_eq!(words(&settings)[..18], [&[16][..], &[5; 16], &[3]].concat());
    }

    #[test]
    fn statements_outside_of_the_settings_are_refused() {
        let changes: [fn(&mut MacStatement); 9] = [
            |one| one.offset = 70,
            |one| one.offset = 72,
            |one| one.offset = u32::MAX - 3,
            |one| one.limit = 2,
            |one| one.limit = 0,
            |one| one.is_list = 2,
            |one| one.reserved = 1,
            |one| one.kind = 9,
            |one| one.keyword = [b'a'; 32],
        ];
        for change in changes {
            let mut wrong = entry("most");
            change(&mut wrong);
            assert_eq!(read(&[wrong]), Err(NoStatements::Unreadable));
        }
        let mut wrong = list("exempt");
        wrong.count_offset = 72;
        assert_eq!(read(&[wrong]), Err(NoStatements::Unreadable));
        wrong.count_offset = 0;
        wrong.limit = 18;
        assert_eq!(read(&[wrong]), Err(NoStatements::Unreadable));
        let mut other = entry("other");
        other.size = 76;
        assert_eq!(read(&[entry("most"), other]), Err(NoStatements::Unreadable));
        let bytes = entry("most").as_bytes()[1..].to_vec();
        assert_eq!(Statement::read(&bytes), Err(NoStatements::Unreadable));
    }

    #[test]
    fn statements_that_no_policy_could_have_are_refused() {
        assert_eq!(read(&[]), Err(NoStatements::Count(0)));
        assert_eq!(read(&[entry("a"); 65]), Err(NoStatements::Count(65)));
        let twice = read(&[entry("most"), list("most")]);
        assert_eq!(twice, Err(NoStatements::Twice("most".into())));
        for keyword in ["", "Most", "1st", "a-b", "a b"] {
            let refused = read(&[entry(keyword)]);
            assert_eq!(refused, Err(NoStatements::Keyword(keyword.into())));
        }
        let mut wrong = entry("most");
        wrong.by_default = 10;
        assert_eq!(read(&[wrong]), Err(NoStatements::Values("most".into())));
        wrong.by_default = 9;
        assert!(read(&[wrong]).is_ok());
        wrong.kind = MAC_VALUE_SWITCH;
        assert_eq!(read(&[wrong]), Err(NoStatements::Values("most".into())));
        let mut large = entry("most");
        large.size = 65540;
        assert_eq!(read(&[large]), Err(NoStatements::Size(65540)));
    }
}
