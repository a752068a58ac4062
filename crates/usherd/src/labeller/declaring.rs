//! Reads the policy's statements for modules from files, as each module declares them.

use std::collections::BTreeSet;

use usher_mac::{Module, Settings, Statement, StatementValues};
use usher_policy::mac::{AccountId, MacBlock, ModuleSettings};

use super::error::{MacError, StatementFault};
use super::resolving::Resolver;

impl Resolver<'_> {
    /// The settings that a block of the policy makes for a module from a file. `None`: the module has none.
    ///
    /// # Errors
    /// The first statement that the module does not take, or the first name that this host does not know.
    pub(super) fn declared(
        &mut self,
        module: &Module,
        block: Option<&MacBlock>,
    ) -> Result<Option<Settings>, MacError> {
        let written = match block.map(|block| &block.settings) {
            Some(ModuleSettings::Declared(written)) => written.as_slice(),
            _ => &[],
        };
        let statements = module.statements();
        let refused = |place: &str, fault| {
            Err(MacError::Statement {
                place: place.to_owned(),
                module: module.name().to_owned(),
                fault,
            })
        };
        let mut settings = match (module.settings(), written) {
            (Some(Settings::Declared(settings)), _) => settings.clone(),
            (_, []) => return Ok(None),
            (_, [first, ..]) => {
                let place = first.origin.place.to_string();
                return refused(&place, StatementFault::None(first.keyword.clone()));
            }
        };
        let mut read = BTreeSet::new();
        for setting in written {
            let (keyword, place) = (&setting.keyword, setting.origin.place.to_string());
            let Some(statement) = statements.iter().find(|one| one.keyword == *keyword) else {
                let known: Vec<&str> = statements.iter().map(|one| one.keyword.as_str()).collect();
                let (keyword, known) = (keyword.clone(), known.join(", "));
                return refused(&place, StatementFault::Unknown { keyword, known });
            };
            if !read.insert(keyword) {
                return refused(&place, StatementFault::Twice(keyword.clone()));
            }
            if !takes(statement, setting.values.len()) {
                let (keyword, found) = (keyword.clone(), setting.values.len());
                let wanted = count(statement);
                let fault = StatementFault::Count {
                    keyword,
                    found,
                    wanted,
                };
                return refused(&place, fault);
            }
            let mut values = Vec::new();
            for group in &setting.values {
                let found = usher_policy::joined(group, " ");
                match self.value(statement, &found, &place)? {
                    Some(value) => values.push(value),
                    None => {
                        let (keyword, wanted) = (keyword.clone(), wanted(statement));
                        let fault = StatementFault::Value {
                            keyword,
                            found,
                            wanted,
                        };
                        return refused(&place, fault);
                    }
                }
            }
            settings.set(statement, &values);
        }
        Ok(Some(Settings::Declared(settings)))
    }

    /// The number that a value means; `None` for a value of another kind.
    fn value(
        &mut self,
        statement: &Statement,
        text: &str,
        place: &str,
    ) -> Result<Option<u32>, MacError> {
        let accounts = match &statement.values {
            StatementValues::Numbers(range) => {
                let number = usher_policy::digits(text).and_then(|number| number.try_into().ok());
                return Ok(number.filter(|number| range.contains(number)));
            }
            StatementValues::Switch => {
                return Ok(match text {
                    "yes" => Some(1),
                    "no" => Some(0),
                    _ => None,
                });
            }
            StatementValues::Users => &mut self.users,
            StatementValues::Groups => &mut self.groups,
        };
        let account = AccountId::of(text).map(|account| accounts.one(&account, place));
        account.transpose()
    }
}

fn takes(statement: &Statement, values: usize) -> bool {
    match statement.list {
        None => values == 1,
        Some(limit) => (1..=limit).contains(&values),
    }
}

fn count(statement: &Statement) -> String {
    match statement.list {
        None => "one".to_owned(),
        Some(limit) => format!("1 to {limit} with commas between them"),
    }
}

fn wanted(statement: &Statement) -> String {
    match &statement.values {
        StatementValues::Numbers(range) => {
            format!("a number from {} to {}", range.start(), range.end())
        }
        StatementValues::Switch => "yes or no".to_owned(),
        StatementValues::Users => "the name or the number of a user".to_owned(),
        StatementValues::Groups => "the name or the number of a group".to_owned(),
    }
}
