//! Campaigns of hostile clients against the real program, on loopback: `cargo xtask attack`.
//!
//! Each file is a campaign: the attack, and a control in which the defence is switched off and the attack must
//! succeed. Defences are switched off by the settings that loosen them, or by a stand-in that behaves as the program
//! once did; the program itself has no such switch.

#[path = "api/campaign.rs"]
mod campaign;

#[path = "attack/stage.rs"]
mod stage;

#[path = "attack/upstream.rs"]
mod upstream;

#[path = "attack/upgrades.rs"]
mod upgrades;

#[path = "attack/drip.rs"]
mod drip;

#[path = "attack/key_burning.rs"]
mod key_burning;

#[path = "attack/limiter_storm.rs"]
mod limiter_storm;

#[path = "attack/replay_matrix.rs"]
mod replay_matrix;

#[path = "attack/rebinding.rs"]
mod rebinding;

#[path = "attack/tenant_flood.rs"]
mod tenant_flood;

#[path = "attack/forged_notify.rs"]
mod forged_notify;
