package operation

// Types of the application errors that an operation ends with.
const (
	TypeRefused    = "Refused"    // nothing was touched; also of an activity: the operation must not start
	TypeRolledBack = "RolledBack" // everything that was done was taken back
	TypeFailed     = "Failed"     // the cluster is in Alert
)

// Types of the errors of activities that trying again cannot help. Every other
// error of an activity is retried by its policy.
const (
	TypeConfig      = "Config"          // the configuration or the request is wrong
	TypeNodeAccess  = "NodeAccess"      // host key, login or address of a node is wrong
	TypeDrain       = "DrainFailed"     // an attempt ended with pods left; details: DrainProgress
	TypeCannotDrain = "CannotDrain"     // another attempt with the same settings would end the same way; details: DrainProgress
	TypeUncordoned  = "Uncordoned"      // somebody uncordoned the node during its drain
	TypeScript      = "ScriptFailed"    // the script on a node failed
	TypeNotReady    = "NodeNotReady"    // a node did not become Ready in time
	TypeVolumes     = "VolumesAttached" // volumes are still attached to a machine that is to be destroyed
	TypeVersion     = "WrongVersion"    // a node is not at the version it should be at
)

// TypeWorkerStopping is the type of the error by which an activity hands over to
// another worker; it is retried at once.
const TypeWorkerStopping = "WorkerStopping"
