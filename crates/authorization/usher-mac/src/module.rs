//! Policy modules: what can be loaded, and what is.

use std::borrow::Cow;
use std::os::fd::{AsRawFd, OwnedFd};

use usher_bpf::zerocopy::IntoBytes;
use usher_bpf::{KernelError, Opened, Plain, Table, frozen_bytes};

use crate::bsdextended::Rule;
use crate::declaration::{Declaration, NotAModule};
use crate::ifoff::{self, SilenceSettings};
use crate::portacl::{self, PortSettings};
use crate::seeotheruids::{self, VisibilitySettings};
use crate::shared::MacTe;
use crate::statements::{DeclaredSettings, Statement};
use crate::te::{self, TypeSettings};
use crate::ubns::ServiceSettings;
use crate::{EntryPoint, Error, encode, encode_services};

/// Limit of modules that are loaded at the same time.
pub const MAX_MODULES: usize = 8;

/// A module that this program brings.
struct BuiltIn {
    name: &'static str,
    /// Its object file.
    object: &'static [u8],
    /// The settings with which it comes into force if it gets no others; none for a module without.
    settings: fn() -> Option<Settings>,
}

macro_rules! built_in {
    ($($name:literal => $settings:expr,)*) => {
        /// The modules that this program brings.
        pub const NAMES: [&str; [$($name),*].len()] = [$($name),*];

        static BUILT_IN: [BuiltIn; NAMES.len()] = [$(BuiltIn {
            name: $name,
            object: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".bpf.o")),
            settings: || $settings,
        }),*];
    };
}

built_in! {
    "none" => None,
    "test" => Some(Settings::Test(Answers { uid: u32::MAX, errors: Vec::new() })),
    "bsdextended" => Some(Settings::Bsdextended(Vec::new())),
    "ubns" => Some(Settings::Ubns(Vec::new())),
    "biba" => None,
    "mls" => None,
    "lomac" => None,
    "portacl" => Some(Settings::Portacl(PortSettings::default())),
    "seeotheruids" => Some(Settings::Seeotheruids(VisibilitySettings::default())),
    "partition" => None,
    "ifoff" => Some(Settings::Ifoff(SilenceSettings::default())),
    "te" => Some(Settings::Te(TypeSettings::default())),
}

/// Prefix of the names of a module's programs.
pub(crate) const CHECK: &str = "check_";

/// The table of a module with settings: its only entry is the table of those in force.
pub(crate) const SETTINGS: &str = "settings";

/// The answers of the module `test`. Only processes with this real uid get them, so that a test does
/// not lock itself out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answers {
    /// The real uid.
    pub uid: u32,
    /// Positive numbers of errors (errno(3)); entry points that are not named permit.
    pub errors: Vec<(EntryPoint, i32)>,
}

/// Settings of a module: each kind belongs to one module.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settings {
    /// Of `bsdextended`, in the order in which they are asked.
    Bsdextended(Vec<Rule>),
    /// Of `test`.
    Test(Answers),
    /// Of `ubns`: the services of the policy.
    Ubns(Vec<ServiceSettings>),
    /// Of `portacl`.
    Portacl(PortSettings),
    /// Of `seeotheruids`.
    Seeotheruids(VisibilitySettings),
    /// Of `ifoff`.
    Ifoff(SilenceSettings),
    /// Of `te`.
    Te(TypeSettings),
    /// Of a module from a file.
    Declared(DeclaredSettings),
}

impl Settings {
    /// The name of their module.
    #[must_use]
    pub fn module(&self) -> &str {
        match self {
            Self::Bsdextended(_) => "bsdextended",
            Self::Test(_) => "test",
            Self::Ubns(_) => "ubns",
            Self::Portacl(_) => "portacl",
            Self::Seeotheruids(_) => "seeotheruids",
            Self::Ifoff(_) => "ifoff",
            Self::Te(_) => "te",
            Self::Declared(settings) => settings.module(),
        }
    }

    /// The bytes that the module reads.
    ///
    /// # Errors
    /// A mistake in the settings.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        Ok(match self {
            Self::Bsdextended(rules) => encode::rules(rules)?.as_bytes().to_vec(),
            Self::Test(answers) => encode::answers(answers).as_bytes().to_vec(),
            Self::Ubns(services) => encode_services::services(services)?.as_bytes().to_vec(),
            Self::Portacl(ports) => portacl::encode(ports)?.as_bytes().to_vec(),
            Self::Seeotheruids(exempt) => seeotheruids::encode(exempt).as_bytes().to_vec(),
            Self::Ifoff(silence) => ifoff::encode(silence)?.as_bytes().to_vec(),
            Self::Te(types) => te::encode(types)?.as_bytes().to_vec(),
            Self::Declared(settings) => settings.bytes().to_vec(),
        })
    }

    /// A table that holds them, and that user space cannot change.
    pub(crate) fn table(&self) -> Result<SettingsTable, Error> {
        Ok(match self {
            Self::Bsdextended(rules) => frozen(&encode::rules(rules)?)?,
            Self::Test(answers) => frozen(&encode::answers(answers))?,
            Self::Ubns(services) => frozen(&encode_services::services(services)?)?,
            Self::Portacl(ports) => frozen(&portacl::encode(ports)?)?,
            Self::Seeotheruids(exempt) => frozen(&seeotheruids::encode(exempt))?,
            Self::Ifoff(silence) => frozen(&ifoff::encode(silence)?)?,
            Self::Declared(settings) => SettingsTable {
                descriptor: frozen_bytes(TABLE, settings.bytes())?,
                notes: None,
            },
            Self::Te(types) => {
                let table = filled(&*te::encode(types)?)?;
                SettingsTable {
                    notes: Some(table.try_clone()?),
                    descriptor: table.freeze()?,
                }
            }
        })
    }
}

/// The name of tables of settings.
const TABLE: &str = "mac_settings";

/// A table of settings.
pub(crate) struct SettingsTable {
    pub(crate) descriptor: OwnedFd,
    /// That of `te`, where the module notes what it refuses.
    pub(crate) notes: Option<Table<u32, MacTe>>,
}

fn frozen<S: Plain>(settings: &S) -> Result<SettingsTable, KernelError> {
    Ok(SettingsTable {
        descriptor: filled(settings)?.freeze()?,
        notes: None,
    })
}

fn filled<S: Plain>(settings: &S) -> Result<Table<u32, S>, KernelError> {
    let table = Table::of_one(TABLE)?;
    table.set(&0, settings)?;
    Ok(table)
}

/// Puts a table of settings in the place of the former one.
pub(crate) fn exchange(place: &Table<u32, u32>, settings: &OwnedFd) -> Result<(), KernelError> {
    place.set(&0, &settings.as_raw_fd().unsigned_abs())
}

/// A module that can be loaded, with the settings with which it comes into force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    pub(crate) name: Cow<'static, str>,
    /// Its object file.
    code: Cow<'static, [u8]>,
    pub(crate) settings: Option<Settings>,
    statements: Vec<Statement>,
}

impl Module {
    /// The built-in module of this name, with its default settings.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let built_in = BUILT_IN.iter().find(|module| module.name == name)?;
        Some(Self::built_in(built_in, (built_in.settings)()))
    }

    /// The module in an object file, with its default settings.
    ///
    /// # Errors
    /// The reason that these bytes are no module for this version.
    pub fn from_object(bytes: Vec<u8>) -> Result<Self, NotAModule> {
        let declared = Declaration::read(&bytes)?;
        let settings = match (declared.has_settings, declared.statements.as_slice()) {
            (true, []) => return Err(NotAModule::NoStatement),
            (false, [_, ..]) => return Err(NotAModule::NoSettings),
            (false, []) => None,
            (true, statements) => {
                let size = declared.settings_size;
                let settings = DeclaredSettings::new(&declared.name, statements, size);
                Some(Settings::Declared(settings))
            }
        };
        Ok(Self {
            name: declared.name.into(),
            code: bytes.into(),
            settings,
            statements: declared.statements,
        })
    }

    /// The same module with other settings.
    #[must_use]
    pub fn with_settings(mut self, settings: Settings) -> Self {
        self.settings = Some(settings);
        self
    }

    /// The module that declares every entry point and refuses nothing.
    #[must_use]
    pub fn none() -> Self {
        Self::built_in(&BUILT_IN[0], None)
    }

    /// The module `bsdextended` with these rules.
    #[must_use]
    pub fn bsdextended(rules: Vec<Rule>) -> Self {
        Self::with(Settings::Bsdextended(rules))
    }

    /// The built-in module to which these settings belong.
    #[must_use]
    pub fn with(settings: Settings) -> Self {
        let name = settings.module();
        let built_in = BUILT_IN.iter().find(|module| module.name == name);
        Self::built_in(built_in.unwrap_or(&BUILT_IN[0]), Some(settings))
    }

    fn built_in(module: &BuiltIn, settings: Option<Settings>) -> Self {
        Self {
            name: module.name.into(),
            code: module.object.into(),
            settings,
            statements: Vec::new(),
        }
    }

    /// The settings with which it comes into force; none for a module without.
    #[must_use]
    pub fn settings(&self) -> Option<&Settings> {
        self.settings.as_ref()
    }

    /// The statements by which the policy sets them; none of a built-in module, whose statements are the
    /// language's own.
    #[must_use]
    pub fn statements(&self) -> &[Statement] {
        &self.statements
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether this program brings it; else it is from an object file.
    #[must_use]
    pub fn is_built_in(&self) -> bool {
        matches!(self.code, Cow::Borrowed(_))
    }

    /// Its object file.
    #[must_use]
    pub fn object(&self) -> &[u8] {
        &self.code
    }

    /// What its object file declares.
    ///
    /// # Errors
    /// The reason that it is no module for this version.
    pub fn declaration(&self) -> Result<Declaration, Error> {
        Declaration::read(&self.code).map_err(|reason| Error::NotAModule {
            name: self.name.clone().into_owned(),
            reason,
        })
    }

    /// Its programs.
    pub(crate) fn open(&self) -> Result<Opened, KernelError> {
        Opened::read(&format!("mac_{}", self.name), &self.code)
    }
}

/// A module in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loaded {
    /// Its name.
    pub name: String,
    /// Its slot, from 0, below [`MAX_MODULES`].
    pub slot: usize,
    /// Its place in the order of loading, from 0. All modules are always asked, so the order decides
    /// nothing.
    pub order: usize,
    /// The entry points that it declares.
    pub entry_points: Vec<EntryPoint>,
    /// Refusals since it was loaded, of the entry points that have refused.
    pub refusals: Vec<(EntryPoint, u64)>,
    /// How often it has lowered a process since it was loaded.
    pub lowered: u64,
}
