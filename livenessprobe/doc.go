// Package livenessprobe answers a kubelet's HTTP liveness probe with the CSI
// call Probe of the driver in the same pod. It is the helper livenessprobe as
// a library: several may run in one process.
//
// /healthz is the driver's answer, /livez this process alone. One connection
// is kept and made again when it was lost; however many ask at once, the
// driver is asked once.
//
// It needs no Kubernetes API. A helper that waits for its own driver before it
// starts uses package csiclient instead.
package livenessprobe
