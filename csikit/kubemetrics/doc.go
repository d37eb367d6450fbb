// Package kubemetrics measures what a controller does with the Kubernetes API: its
// queues, its leadership and its requests. Names, labels and buckets are those that
// Kubernetes components have, so dashboards keep working.
//
// Each type registers on the registry it is given; nothing is global, so two components
// can live in one process. Metrics of CSI calls are in package metrics, which links no Kubernetes client.
package kubemetrics
