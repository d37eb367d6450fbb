package driverobject

import "github.com/longshore-csi/longshore/csikit/leader"

// Manager is the name of the component, and the field manager of what it writes.
const Manager = "csi-cluster-driver-registrar"

// QueueName is the name of the work queue in metrics and logs.
const QueueName = "csi-cluster-driver-registrar-csidriver"

// Reasons of the events on the CSIDriver object.
const (
	// ReasonConflict: a field has another value than it shall have, and belongs to another field manager.
	ReasonConflict = "CSIDriverConflict"
	// ReasonImmutable: a field has another value than it shall have, and cannot be changed.
	ReasonImmutable = "CSIDriverImmutable"
	// ReasonNotStored: the API server does not store a field.
	ReasonNotStored = "CSIDriverFieldNotStored"
	// ReasonCapacity: the scheduler waits for capacities that are never published.
	ReasonCapacity = "CSIDriverNoCapacity"
	// ReasonRestored: a field that another field manager has changed has its value again.
	ReasonRestored = "CSIDriverRestored"
	// ReasonFailed: the API server refuses to write the object; the registrar retries.
	ReasonFailed = "CSIDriverWriteFailed"
)

// LeaseName returns the name of the Lease that the registrars of a driver compete for.
func LeaseName(driver string) string {
	return leader.SanitizeName("cluster-driver-registrar-leader-" + driver)
}
