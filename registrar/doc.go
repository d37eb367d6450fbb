// Package registrar registers a CSI driver with the kubelet of its node. It is
// the node's side-car csi-node-driver-registrar as a library: several may run
// in one process.
//
// It asks the driver for its name, puts a registration socket where the
// kubelet looks for such, and serves pluginregistration v1 on it until its
// context ends. Nothing makes it give up: a driver that is away is waited for,
// a refusal is answered with a fresh socket after a while, and a socket that
// somebody removed is made again.
//
// It needs no Kubernetes API. Do not use it to make CSIDriver objects.
package registrar
