package volume

// Severity is what a condition means to the users of a volume (CSI v1.13,
// "VolumeHealthErrorType" and "StorageHealthErrorType").
type Severity int

const (
	// Degraded can be used, but not as it should be.
	Degraded Severity = iota + 1
	// Inaccessible cannot be used.
	Inaccessible
	// DataLoss has lost data for good.
	DataLoss
)

// Condition is one thing that is wrong.
type Condition struct {
	Severity Severity
	// Reason is a word in CamelCase, for machines. It stands once for each
	// severity.
	Reason string
	// Message is for people.
	Message string
}

// Health is what is wrong with a volume; nothing where all is well.
type Health struct {
	ID         ID
	Conditions []Condition
}

// HealthPage is a part of the list of volumes with which something is wrong.
type HealthPage struct {
	Entries []Health
	// Next asks for the following page; empty after the last one.
	Next string
}
