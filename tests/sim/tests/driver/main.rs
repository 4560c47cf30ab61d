//! What the simulated driver answers, through the table of functions that programs use.

mod account;
mod capture;
mod clients;
mod clock;
mod created;
mod effect;
mod graph;
mod launch;
mod library;
mod machine;
mod memory;
mod misuse;
mod occupancy;
mod order;
mod peer;
mod pool;
mod profile;
mod race;
mod resource;
mod settings;
mod stream;
mod structured;
mod tensor_map;
mod transfer;
mod version;
mod workqueue;
