// Package registrar registers a CSI driver with the kubelet of its node. It is
// the sidecar csi-node-driver-registrar as a library: several may run
// in one process.
//
// It reads the driver's name, creates a registration socket in the kubelet's
// plugins_registry, and serves pluginregistration v1 on it until its
// context ends. It never gives up: it waits for a driver that is absent, makes a
// new socket some time after a refusal, and makes a socket again that another
// process removed.
//
// It needs no Kubernetes API. Do not use it to make CSIDriver objects.
package registrar
