package volume

import corev1 "k8s.io/api/core/v1"

// Space is how much of a resource a volume has.
type Space struct {
	// Capacity, Used and Available are numbers of bytes or inodes.
	Capacity, Used, Available int64
}

// Condition is a problem of a volume, as its driver reports it (CSI v1.13, "NodeGetVolumeHealth").
type Condition struct {
	// Status is the category; empty for a driver that reports by VolumeCondition, and for a category that is not known.
	Status corev1.VolumeHealthStatusType
	// Reason is one word in CamelCase; empty for a driver that reports by VolumeCondition.
	Reason string
	// Message is for people.
	Message string
}

// Usage is what a driver has reported of a volume of a pod.
type Usage struct {
	Published

	// Bytes and Inodes are nil where the driver has not told.
	Bytes, Inodes *Space
	// Health says that the driver reports conditions.
	Health bool
	// Conditions are the present problems, in the driver's order.
	Conditions []Condition
	// Err is why the last call has failed; the rest is of the last one that has not. Nil if it has not failed.
	Err error
}
