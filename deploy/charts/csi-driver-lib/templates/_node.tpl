{{/* The CSIDriver object. */}}
{{- define "csi-driver-lib.csidriver" -}}
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata:
  name: {{ .Values.driver.name }}
  labels: {{- include "csi-driver-lib.labels" . | nindent 4 }}
spec:
  attachRequired: {{ ternary true false (ne "" (include "csi-driver-lib.can" (list . "PUBLISH_UNPUBLISH_VOLUME"))) }}
  storageCapacity: {{ ternary true false (ne "" (include "csi-driver-lib.capacity" .)) }}
  {{- with .Values.csiDriver }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* The node side: the driver and its registrar, and their account. */}}
{{- define "csi-driver-lib.node" -}}
{{- $name := printf "%s-node" (include "csi-driver-lib.name" .) -}}
{{- $values := .Values.node -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ $name }}
  namespace: {{ .Release.Namespace }}
  labels: {{- include "csi-driver-lib.labels" . | nindent 4 }}
---
# The node side: next to each kubelet, which calls the driver over the socket in its plugins directory.
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: {{ $name }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "csi-driver-lib.labels" . | nindent 4 }}
    csi.longshore.dev/node: "true"
spec:
  selector:
    matchLabels:
      app.kubernetes.io/name: {{ $name }}
  updateStrategy:
    rollingUpdate: {maxUnavailable: {{ $values.maxUnavailable }}}
  template:
    metadata:
      labels:
        app.kubernetes.io/name: {{ $name }}
        app.kubernetes.io/part-of: {{ include "csi-driver-lib.name" . }}
      annotations: {{- include "csi-driver-lib.podAnnotations" . | nindent 8 }}
    spec:
      {{- include "csi-driver-lib.pod" (list . "node") | nindent 6 }}
      {{- if .Values.provisionOnNodes }}
      terminationGracePeriodSeconds: {{ .Values.controller.terminationGracePeriodSeconds }}
      {{- end }}
      securityContext:
        seccompProfile: {type: RuntimeDefault}
      containers:
      {{- include "csi-driver-lib.driver" (list . "node") | nindent 6 }}
      - name: registrar
        {{- include "csi-driver-lib.image" (list . "csi-node-driver-registrar") | nindent 8 }}
        args:
        - --csi-address=/csi/csi.sock
        - --kubelet-registration-path={{ include "csi-driver-lib.pluginDir" . }}/csi.sock
        - --http-endpoint=:9809
        - --v={{ .Values.logLevel }}
        {{- with $values.registrar.extraArgs }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        ports:
        - {name: registrar, containerPort: 9809}
        livenessProbe: # not /healthz, which fails while the registrar waits for the driver or the kubelet: a restart would not help
          httpGet: {path: /livez, port: registrar}
          timeoutSeconds: 5
        readinessProbe: # ready once the kubelet has registered the driver
          httpGet: {path: /readyz, port: registrar}
          timeoutSeconds: 5
        {{- include "csi-driver-lib.root" "plugins_registry belongs to root" | nindent 8 }}
        resources: {{- toYaml $values.registrar.resources | nindent 10 }}
        volumeMounts:
        - {name: plugin-dir, mountPath: /csi}
        - {name: registration-dir, mountPath: /registration}
      {{- if .Values.provisionOnNodes }}
      {{- $root := . }}
      {{- range splitList " " (include "csi-driver-lib.sidecars" .) }}
      {{- include "csi-driver-lib.sidecar" (list $root .) | nindent 6 }}
      {{- end }}
      {{- end }}
      {{- include "csi-driver-lib.livenessprobe" (list . "node") | nindent 6 }}
      volumes:
      - name: plugin-dir
        hostPath: {path: {{ include "csi-driver-lib.pluginDir" . | quote }}, type: DirectoryOrCreate}
      - name: kubelet-dir
        hostPath: {path: {{ .Values.kubeletDir | quote }}, type: Directory}
      - name: state-dir
        hostPath: {path: {{ include "csi-driver-lib.stateDir" . | quote }}, type: DirectoryOrCreate}
      - name: dev-dir # a container's own /dev never shows the loop devices that are made after it was started
        hostPath: {path: /dev, type: Directory}
      - name: registration-dir
        hostPath: {path: {{ printf "%s/plugins_registry" .Values.kubeletDir | quote }}, type: Directory}
      {{- if .Values.provisionOnNodes }}
      {{- include "csi-driver-lib.apiAccess" . | nindent 6 }}
      {{- end }}
      {{- with $values.volumes }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
{{- end -}}
