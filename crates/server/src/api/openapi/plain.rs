//! From short forms to those that generators of clients read: OpenAPI 3.0.
//!
//! The parts are written with JSON Schema's newer words, which are short. Generators stumble over them, so what is served
//! says the same in older ones:
//!
//! | written | served |
//! |---|---|
//! | `"type": ["string", "null"]`, a `oneOf` with null | `nullable` |
//! | `const` | an `enum` of one, with its type |
//! | `prefixItems` | `items` of one type, or of any |
//! | a reference into `…/properties/…` | a copy |
//! | a parameter `queue` beside a schema `Queue` | `param_queue`: in Go both would be one type |
//! | `exclusiveMinimum: 0`, `contentEncoding`, `examples` | `exclusiveMinimum: true`, `format: byte`, `example` |

use serde_json::{Map, Value, json};

/// Where parameters are.
const PARAMETERS: &str = "#/components/parameters/";

/// The version of what is served.
const VERSION: &str = "3.0.3";

/// The whole document for generators.
pub(super) fn plain(whole: &Value) -> Value {
    let mut served = rewritten(whole, whole);
    served["openapi"] = VERSION.into();
    if let Some(Value::Object(parameters)) = served.pointer_mut("/components/parameters") {
        *parameters =
            std::mem::take(parameters).into_iter().map(|(name, it)| (format!("param_{name}"), it)).collect();
    }
    if let Some(license) = served.pointer_mut("/info/license").and_then(Value::as_object_mut) {
        license.remove("identifier");
    }
    served
}

fn rewritten(whole: &Value, part: &Value) -> Value {
    match part {
        Value::Array(parts) => parts.iter().map(|part| rewritten(whole, part)).collect(),
        Value::Object(members) => {
            if let Some(copied) = into_properties(whole, members) {
                return rewritten(whole, copied);
            }
            let members = members.iter().map(|(name, part)| (name.clone(), rewritten(whole, part)));
            Value::Object(schema(members.collect()))
        }
        other => other.clone(),
    }
}

/// What a reference into the properties of a schema leads to.
fn into_properties<'w>(whole: &'w Value, members: &Map<String, Value>) -> Option<&'w Value> {
    let reference = members.get("$ref")?.as_str()?;
    whole.pointer(reference.strip_prefix('#').filter(|path| path.contains("/properties/"))?)
}

fn schema(mut members: Map<String, Value>) -> Map<String, Value> {
    let mut is_nullable = false;
    if let Some(Value::String(reference)) = members.get_mut("$ref")
        && let Some(name) = reference.strip_prefix(PARAMETERS)
    {
        *reference = format!("{PARAMETERS}param_{name}");
    }
    if let Some(Value::Array(types)) = members.get("type") {
        let rest: Vec<Value> = types.iter().filter(|kind| *kind != "null").cloned().collect();
        is_nullable = rest.len() < types.len();
        match &rest[..] {
            [one] => drop(members.insert("type".to_owned(), one.clone())),
            // Any: there is no union of types.
            _ => {
                members.remove("type");
                return members;
            }
        }
    }
    if let Some(Value::Array(choices)) = members.get("oneOf")
        && let null = json!({ "type": "null" })
        && choices.contains(&null)
    {
        let rest: Vec<Value> = choices.iter().filter(|choice| **choice != null).cloned().collect();
        is_nullable = true;
        members.remove("oneOf");
        let word = if rest.len() == 1 { "allOf" } else { "oneOf" };
        members.insert(word.to_owned(), rest.into());
    }
    if let Some(only) = members.get("const").filter(|only| !only.is_object()).cloned() {
        members.remove("const");
        members.insert("enum".to_owned(), json!([only]));
    }
    if let Some(Value::Array(values)) = members.get_mut("enum") {
        let before = values.len();
        values.retain(|value| !value.is_null());
        is_nullable |= values.len() < before;
        let kind = values.first().and_then(kind);
        if let (Some(kind), false) = (kind, members.contains_key("type")) {
            members.insert("type".to_owned(), kind.into());
        }
    }
    if let Some(Value::Array(items)) = members.remove("prefixItems") {
        let first = items.first().cloned().unwrap_or_else(|| json!({}));
        let same = items.iter().all(|item| *item == first);
        members.insert("items".to_owned(), if same { first } else { json!({}) });
    }
    if let Some(Value::Array(examples)) = members.get("examples").cloned() {
        members.remove("examples");
        members.extend(examples.into_iter().next().map(|example| ("example".to_owned(), example)));
    }
    if members.get("contentEncoding").is_some_and(|coding| coding == "base64") {
        members.remove("contentEncoding");
        members.insert("format".to_owned(), "byte".into());
    }
    if let Some(least) = members.get("exclusiveMinimum").filter(|least| least.is_number()).cloned() {
        members.insert("minimum".to_owned(), least);
        members.insert("exclusiveMinimum".to_owned(), true.into());
    }
    if is_nullable {
        members.insert("nullable".to_owned(), true.into());
    }
    members
}

fn kind(value: &Value) -> Option<&'static str> {
    Some(match value {
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_forms_become_those_that_generators_read() {
        let of = |written: Value| {
            plain(&json!({ "a": { "properties": { "b": { "const": 1 } } }, "x": written }))["x"].clone()
        };
        for (written, served) in [
            (json!({ "type": ["string", "null"] }), json!({ "type": "string", "nullable": true })),
            (json!({ "type": ["string", "integer"] }), json!({})),
            (
                json!({ "oneOf": [{ "$ref": "#/y" }, { "type": "null" }] }),
                json!({ "allOf": [{ "$ref": "#/y" }], "nullable": true }),
            ),
            (json!({ "const": "ok" }), json!({ "enum": ["ok"], "type": "string" })),
            (json!({ "enum": ["a", null] }), json!({ "enum": ["a"], "type": "string", "nullable": true })),
            (json!({ "$ref": "#/a/properties/b" }), json!({ "enum": [1], "type": "integer" })),
            (
                json!({ "prefixItems": [{ "type": "string" }, { "type": "string" }] }),
                json!({ "items": { "type": "string" } }),
            ),
            (json!({ "prefixItems": [{ "type": "string" }, {}] }), json!({ "items": {} })),
            (json!({ "exclusiveMinimum": 0 }), json!({ "minimum": 0, "exclusiveMinimum": true })),
            (json!({ "contentEncoding": "base64" }), json!({ "format": "byte" })),
            (json!({ "examples": ["30s"] }), json!({ "example": "30s" })),
        ] {
            assert_eq!(of(written.clone()), served, "{written}");
        }
    }
}
