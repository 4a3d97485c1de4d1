package cluster

// ConfigError is a fault in ebb.yaml. Trying again cannot help before somebody has
// changed that file.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// configError marks err, which may be nil, as a fault of the configuration.
func configError(err error) error {
	if err == nil {
		return nil
	}
	return &ConfigError{Err: err}
}
