//! The registry over real and faulty stores: memory, a local folder, and, with `REGISTRY_TEST_S3=s3://BUCKET`, a server.

mod clients;
mod faults;
mod faulty;
mod flow;
mod following;
mod garbage;
mod gating;
mod kills;
mod mirroring;
mod processes;
mod races;
mod requests;
mod trust;
mod world;
