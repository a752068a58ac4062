//! Mistakes in `mac` blocks besides those of form, each with its text and its remedy.

use usher_label::{LabelMistake, ValueMistake};
use usher_language::{Found, Place, did_you_mean, mistakes};

use crate::limits::{
    MAXIMUM_ACCESS_RULES, MAXIMUM_ATTRIBUTES, MAXIMUM_INTERFACE_NAME, MAXIMUM_INTERFACES,
    MAXIMUM_NAMES, MAXIMUM_PERMITS, MAXIMUM_RANGES, MAXIMUM_RELABELS, MAXIMUM_SWITCHES,
    MAXIMUM_TYPE_RULES,
};

mistakes! {
    /// The mistakes. `found` is the text at fault, `first` the earlier text that this one contradicts.
    pub enum MacMistake {
        /// No name of a module.
        NoModule { found: Found, near: Option<String> }
            => "no module can be called `{found}`";
            "{}", did_you_mean(near, "name a module: small letters, digits and `_`, a letter first, at most 31");
        /// `subject` or `object` without a condition.
        NoCondition { side: &'static str, conditions: String }
            => "`{side}` has no condition";
            "write a condition ({conditions}), or leave `{side}` out: the rule is then about every {side}";
        /// A condition that the same side has already.
        RepeatedCondition { side: &'static str, condition: String, first: Place }
            => "`{side}` has the condition `{condition}` already at {first}";
            "write all values behind one `{condition}`, or make a rule for each";
        /// A word that is no condition, and no value of the one before.
        UnknownCondition { side: &'static str, found: Found, conditions: String }
            => "`{side}` has no condition `{found}`";
            "conditions of `{side}` are {conditions}; then come `object` and `mode`";
        /// A condition without its value.
        NoValue { condition: String, form: &'static str }
            => "the condition `{condition}` lacks its value"; "write `{condition} {form}`";
        /// Neither a number, nor a range, nor a name.
        InvalidAccount { found: Found, noun: &'static str }
            => "`{found}` is neither the name of a {noun} nor a number or range of numbers";
            "write a name, a number from 0 to 4294967294, or a range such as 1000:1999";
        /// Neither a number nor a name.
        NoAccount { found: Found, noun: &'static str }
            => "`{found}` is neither the name nor the number of a {noun}";
            "write a name, or a number from 0 to 4294967294";
        /// A range whose first number is after its last.
        AccountsBackwards { found: Found }
            => "the range `{found}` ends before it begins"; "write the lower number first";
        /// More than [`MAXIMUM_RANGES`] values of a condition.
        TooManyAccounts { condition: String, found: usize }
            => "the condition `{condition}` has {found} values, more than {MAXIMUM_RANGES}";
            "write ranges such as 1000:1999, or make several rules";
        /// No path of a file system.
        InvalidFileSystem { found: Found }
            => "`{found}` is no plain absolute path";
            "write a path on the file system, such as \"/home\", without `.`, `..`, `//` and `/` at its end";
        /// No file of the configuration.
        InvalidSpecification { found: Found }
            => "`{found}` is no plain path below /etc";
            "put the file below /etc, where only root writes, and write its path, such as \"/etc/usher/files.mac\"";
        /// No name of a network interface.
        InvalidInterface { found: Found }
            => "`{found}` is no name of a network interface";
            "write a name as `ip link` shows it, before an `@`: 1 to {MAXIMUM_INTERFACE_NAME} bytes, without \
             blanks, `/`, `:` and `%`";
        /// More than [`MAXIMUM_INTERFACES`].
        TooManyInterfaces
            => "this interface is one more than the {MAXIMUM_INTERFACES} that have labels";
            "leave out interfaces whose packets no module tells apart";
        /// No label.
        InvalidLabel { byte: usize, mistake: LabelMistake }
            => "at byte {byte} of the label: {mistake}"; "{}", mistake.remedy();
        /// A value that its module does not take.
        InvalidValue { element: String, mistake: ValueMistake }
            => "`{element}`: {mistake}"; "{}", mistake.remedy();
        /// Letters that are no types of files.
        InvalidTypes { found: Found }
            => "`{found}` are no types of files";
            "write each letter once: r for regular files, d directories, b block devices, c character \
             devices, l symbolic links, s sockets, p pipes";
        /// Letters that are no mode.
        InvalidMode { found: Found }
            => "`{found}` is no mode";
            "write each letter once: a to change attributes, r to read, s to see attributes, w to write, x \
             to execute or look up; or n for none of them";
        /// More than [`MAXIMUM_ACCESS_RULES`].
        TooManyRules
            => "this rule is one more than the {MAXIMUM_ACCESS_RULES} that bsdextended takes";
            "write ranges and lists in place of rules that differ in one number";
        /// More than [`MAXIMUM_PERMITS`].
        TooManyPermits
            => "this `permit` is one more than the {MAXIMUM_PERMITS} that portacl takes";
            "permit a port to a group in place of its members";
        /// More than [`MAXIMUM_SWITCHES`].
        TooManySwitches
            => "this `interface` is one more than the {MAXIMUM_SWITCHES} that ifoff takes";
            "write `others`, and name only interfaces that differ from it";
        /// `lo` by its name.
        LoopbackByName
            => "`lo` is the interface of every network namespace, and no name switches it";
            "write `loopback on` or `loopback off`";
        /// The same port, protocol and account again.
        RepeatedPermit { first: Place }
            => "the same `permit` stands at {first}"; "remove one of the two";
        /// No name of a domain, a type or an attribute.
        InvalidTypeName { found: Found }
            => "`{found}` is no name of a domain or type";
            "write 1 to 63 letters, digits and `_.-@:+`";
        /// A name that the module has.
        ReservedTypeName { found: Found, reserved: String }
            => "the name `{found}` is not free"; "choose another name than {reserved}";
        /// A name that stands for something else already.
        RepeatedTypeName { found: Found, first: Place }
            => "the name `{found}` is declared already at {first}";
            "remove one of the two, or choose another name: domains, types and attributes share them";
        /// More than [`MAXIMUM_NAMES`].
        TooManyTypeNames
            => "this is one more than the {MAXIMUM_NAMES} domains and types that te takes";
            "give files that the same domains use in the same way one type";
        /// More than [`MAXIMUM_ATTRIBUTES`].
        TooManyAttributes
            => "this attribute is one more than the {MAXIMUM_ATTRIBUTES} that te takes";
            "name domains and types themselves";
        /// Neither only domains nor only types.
        MixedAttribute { found: Found }
            => "`{found}` is of another kind than the first member";
            "an attribute has domains only, or types only, and no attributes: make one for each";
        /// A name that nothing declares.
        UndeclaredTypeName { found: Found }
            => "no statement declares `{found}`"; "write `domain {found};` or `type {found};`";
        /// Another name where a domain is to stand.
        NotADomain { found: Found }
            => "`{found}` is no domain here"; "write a name that `domain` declares";
        /// Another name where a type is to stand.
        NotAType { found: Found }
            => "`{found}` is no type"; "write a name that `type` declares, `untyped` or `terminal`";
        /// Rules for processes that need none.
        AllowsUnconfined
            => "processes without a domain are asked about nothing, so `unconfined` needs no permission";
            "remove the statement, or give these processes a domain by `transition`";
        /// No class.
        UnknownClass { found: Found, classes: String }
            => "there is no class `{found}`"; "classes are {classes}";
        /// No permission of the class.
        UnknownPermission { class: &'static str, found: Found, permissions: String }
            => "the class `{class}` has no permission `{found}`"; "it has {permissions}";
        /// Capabilities for something else than the domain itself.
        CapabilityOfOthers { found: Found }
            => "capabilities are the process's own, not of `{found}`";
            "write `self` in place of `{found}`";
        /// More than [`MAXIMUM_TYPE_RULES`].
        TooManyTypeRules
            => "with this statement te has more than {MAXIMUM_TYPE_RULES} rules: `allow` counts for each domain and \
                type that it is about";
            "give files that the same domains use in the same way one type, in place of an attribute";
        /// More than [`MAXIMUM_RELABELS`].
        TooManyRelabels
            => "this `relabel` is one more than the {MAXIMUM_RELABELS} that te takes";
            "have `create` give new files their type at once";
        /// Two domains for one program.
        RepeatedTransition { first: Place }
            => "a `transition` from this domain by programs of this type stands at {first}";
            "remove one of the two, or give one of the programs another type";
        /// Two types for what is made in one place.
        RepeatedCreation { first: Place }
            => "a `create` of this domain, type of directory and class stands at {first}";
            "remove one of the two, or give one of the directories another type";
    }
}
