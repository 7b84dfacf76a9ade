//! Which event runs next, as a state machine: inputs and the time in, actions out.
