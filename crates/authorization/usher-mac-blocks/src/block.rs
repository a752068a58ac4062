//! `mac` blocks: which module, and its settings.

use usher_label::ElementName;
use usher_language::{
    BlockText, Fields, Found, Name, NameRule, Origin, Reporter, Setting, Tree, declared, nearest,
};

use crate::account::NamedAccount;
use crate::bsdextended::{self, AccessRule};
use crate::dialect::{MAC, MODULES};
use crate::framework::{self, FRAMEWORK_BLOCK, FrameworkSettings};
use crate::ifoff::{self, IfOff};
use crate::mistake::MacMistake;
use crate::portacl::{self, PortAcl};
use crate::seeotheruids::{self, SeeOtherUids};
use crate::te::{self, TypeEnforcement};

const MODULE: NameRule = NameRule {
    noun: "module",
    rule: Name::RULE,
    any_is_reserved: true,
};

/// A `mac` block. A policy has at most one for each module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MacBlock {
    /// The module.
    pub module: Name,
    /// Its settings.
    pub settings: ModuleSettings,
    /// The block's head.
    pub origin: Origin,
}

/// The settings of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModuleSettings {
    /// The module has none.
    Nothing,
    /// Rules of `bsdextended`, in the order in which they are asked.
    Bsdextended(Vec<AccessRule>),
    /// Of `portacl`.
    Portacl(PortAcl),
    /// Of `seeotheruids`.
    Seeotheruids(SeeOtherUids),
    /// Of `ifoff`.
    Ifoff(IfOff),
    /// Of `te`.
    Te(TypeEnforcement),
    /// Of the framework itself.
    Framework(FrameworkSettings),
    /// Of a module from a file, which declares its statements: the labeller checks them.
    Declared(Vec<Setting>),
}

/// The `mac` blocks of a text, in its order. They are whole only if the reporter stays empty.
pub fn check(tree: &Tree<'_>, reporter: &Reporter<'_>) -> Vec<MacBlock> {
    let blocks = declared::<Name>(&tree.blocks, MAC, &MODULE, reporter);
    let blocks = blocks.into_iter().filter_map(|declared| {
        let (block, module) = (declared.block, declared.name?);
        let settings = match module.as_ref() {
            bsdextended::MODULE => {
                let fields = Fields::read(block, reporter);
                ModuleSettings::Bsdextended(bsdextended::rules(&fields, reporter))
            }
            portacl::MODULE => {
                let fields = Fields::read(block, reporter);
                ModuleSettings::Portacl(portacl::settings(&fields, reporter))
            }
            seeotheruids::MODULE => {
                let fields = Fields::read(block, reporter);
                ModuleSettings::Seeotheruids(seeotheruids::settings(&fields))
            }
            ifoff::MODULE => {
                let fields = Fields::read(block, reporter);
                ModuleSettings::Ifoff(ifoff::settings(&fields, reporter))
            }
            te::MODULE => {
                let fields = Fields::read(block, reporter);
                ModuleSettings::Te(te::settings(&fields, reporter))
            }
            FRAMEWORK_BLOCK => {
                let fields = Fields::read(block, reporter);
                ModuleSettings::Framework(framework::settings(&fields, reporter))
            }
            name if MODULES.contains(&name) => {
                // The module has no statement, so each one is reported.
                Fields::read(block, reporter);
                ModuleSettings::Nothing
            }
            name if name.parse::<ElementName>().is_ok() => {
                ModuleSettings::Declared(Setting::all(block, reporter))
            }
            name => {
                let near = nearest(name, MODULES.iter().copied());
                let found = Found::from(name);
                return reporter.refuse(block.location, MacMistake::NoModule { found, near });
            }
        };
        Some(MacBlock {
            module,
            settings,
            origin: reporter.origin(block.location, block.head_end()),
        })
    });
    blocks.collect()
}

impl ModuleSettings {
    /// The statements in their canonical form, without `;`.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Bsdextended(rules) => rules.iter().map(ToString::to_string).collect(),
            Self::Portacl(settings) => settings.lines(),
            Self::Seeotheruids(settings) => settings.lines(),
            Self::Ifoff(settings) => settings.lines(),
            Self::Te(settings) => settings.lines(),
            Self::Framework(settings) => settings.lines(),
            Self::Declared(settings) => settings.iter().map(ToString::to_string).collect(),
        }
    }
}

impl MacBlock {
    /// True where the block is about a module, and has no effect until the module is loaded; false for the
    /// block of the framework itself.
    pub fn is_of_module(&self) -> bool {
        !matches!(self.settings, ModuleSettings::Framework(_))
    }

    /// The users and groups that its statements name, in their order; one may stand several times.
    pub fn accounts(&self) -> Vec<NamedAccount<'_>> {
        match &self.settings {
            ModuleSettings::Bsdextended(rules) => {
                rules.iter().flat_map(AccessRule::accounts).collect()
            }
            ModuleSettings::Portacl(ports) => ports.accounts().collect(),
            ModuleSettings::Seeotheruids(exempt) => exempt.accounts().collect(),
            ModuleSettings::Nothing
            | ModuleSettings::Ifoff(_)
            | ModuleSettings::Te(_)
            | ModuleSettings::Framework(_)
            | ModuleSettings::Declared(_) => Vec::new(),
        }
    }

    /// The block in its canonical form: reads as the same block.
    pub fn to_text(&self) -> String {
        let mut block = BlockText::new(MAC, &self.module);
        for line in self.settings.lines() {
            block.word(&line);
        }
        block.end()
    }
}
