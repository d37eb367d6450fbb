// Package csiserver serves a CSI driver's gRPC services on a unix socket or a
// TCP port, with deadlines, redacted logs, metrics, traces, recovery from
// panics and a graceful stop.
//
// It is for drivers, and links no Kubernetes client. A component that calls a
// driver uses package csiclient.
package csiserver
