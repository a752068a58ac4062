//! Which bits of packets' marks the rules of nftables set or compare.

use serde_json::Value;

use super::{ALL, User};

/// The rules of **nft -j list ruleset** that set or compare marks.
pub(super) fn nftables(text: &str) -> Vec<User> {
    let listed: Value = serde_json::from_str(text).unwrap_or_default();
    let entries = listed["nftables"].as_array().map_or(&[][..], Vec::as_slice);
    let users = entries.iter().filter_map(|entry| {
        let rule = entry.get("rule")?;
        let statements = rule["expr"].as_array()?;
        let bits = statements
            .iter()
            .map(of_statement)
            .fold(0, |all, one| all | one);
        let name = |name: &str| rule[name].as_str().unwrap_or_default();
        let handle = &rule["handle"];
        (bits != 0).then(|| User {
            rule: format!(
                "the rule of nftables in {} {} {}, handle {handle},",
                name("family"),
                name("table"),
                name("chain")
            ),
            bits,
        })
    });
    users.collect()
}

/// The bits of marks that a statement sets or compares.
fn of_statement(statement: &Value) -> u32 {
    let mangle = &statement["mangle"];
    if is_mark(&mangle["key"]) {
        return changed(&mangle["value"]);
    }
    compared(statement)
}

fn is_mark(value: &Value) -> bool {
    value["meta"]["key"] == "mark"
}

/// The two sides of an operation.
fn sides<'v>(value: &'v Value, operation: &str) -> Option<(&'v Value, &'v Value)> {
    let sides = value.get(operation)?.as_array()?;
    Some((sides.first()?, sides.get(1)?))
}

fn literal(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|number| u32::try_from(number).ok())
}

/// The bits in which a value may differ from the mark that the packet had.
fn changed(value: &Value) -> u32 {
    if is_mark(value) {
        return 0;
    }
    for operation in ["|", "^"] {
        if let Some((left, right)) = sides(value, operation) {
            return literal(right).map_or(ALL, |set| changed(left) | set);
        }
    }
    match sides(value, "&") {
        Some((left, right)) => literal(right).map_or(ALL, |kept| changed(left) | !kept),
        None => ALL,
    }
}

/// The bits of a packet's mark on which an expression depends.
fn compared(value: &Value) -> u32 {
    if is_mark(value) {
        return ALL;
    }
    if let Some((left, right)) = sides(value, "&") {
        return compared(left) & literal(right).unwrap_or(ALL);
    }
    match value {
        Value::Array(values) => values.iter().map(compared).fold(0, |all, one| all | one),
        Value::Object(values) => values.values().map(compared).fold(0, |all, one| all | one),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::bits;
    use super::*;

    #[test]
    fn rules_of_nftables_with_marks_are_found() {
        let mark = r#"{"meta":{"key":"mark"}}"#;
        let rule = |expr: String| {
            let listed = format!(
                r#"{{"nftables":[{{"metainfo":{{}}}},{{"rule":{{"family":"inet","table":"t",
                "chain":"c","handle":3,"expr":[{expr}]}}}}]}}"#
            );
            bits(nftables(&listed))
        };
        let set = |value: String| rule(format!(r#"{{"mangle":{{"key":{mark},"value":{value}}}}}"#));
        let compare = |left: String| {
            rule(format!(
                r#"{{"match":{{"op":"==","left":{left},"right":1}}}}"#
            ))
        };
        assert_eq!(set("1".into()), [ALL]);
        assert_eq!(set(format!(r#"{{"|":[{mark},256]}}"#)), [256]);
        // `meta mark set (meta mark and 0xfffff) or 0x200000`, as nft 1.0.6 prints it.
        let kept = format!(r#"{{"|":[{{"&":[{mark},3145727]}},2097152]}}"#);
        assert_eq!(set(kept), [0xfff0_0000]);
        assert_eq!(compare(mark.into()), [ALL]);
        assert_eq!(compare(format!(r#"{{"&":[{mark},255]}}"#)), [255]);
        assert_eq!(
            compare(r#"{"ct":{"key":"mark"}}"#.into()),
            [0; 0],
            "not the packet's"
        );
        assert_eq!(rule(r#"{"accept":null}"#.into()), [0; 0]);
    }
}
